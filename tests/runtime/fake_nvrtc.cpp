// Stands in for NVRTC. FAKE_NVRTC_VERSION and FAKE_NVRTC_ARCHS say what it is; a program whose text holds "FAIL"
// does not compile; the "binary" of any other is the list of its options, one a line.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Program {
  std::string text, name, log, binary;
};

std::vector<int> archs() {
  const char* const text = std::getenv("FAKE_NVRTC_ARCHS");
  std::vector<int> out;
  for (const char* at = text == nullptr ? "80" : text; *at != '\0';) {
    char* end = nullptr;
    out.push_back(static_cast<int>(std::strtol(at, &end, 10)));
    at = *end == ',' ? end + 1 : end;
  }
  return out;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  const char* const text = std::getenv("FAKE_NVRTC_VERSION");
  return std::sscanf(text == nullptr ? "13.0" : text, "%d.%d", major, minor) == 2 ? 0 : 1;
}

const char* nvrtcGetErrorString(int result) {
  return result == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_FAKE";
}

int nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(archs().size());
  return 0;
}

int nvrtcGetSupportedArchs(int* out) {
  for (const int arch : archs()) *out++ = arch;
  return 0;
}

int nvrtcCreateProgram(Program** program, const char* text, const char* name, int,
                       const char* const*, const char* const*) {
  if (std::getenv("FAKE_NVRTC_NO_PROGRAM") != nullptr) return 3;
  *program = new Program{text, name, {}, {}};
  return 0;
}

int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}

int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  for (int i = 0; i < count; ++i) program->binary += std::string(options[i]) + "\n";
  const char* const line = std::strstr(program->text.c_str(), "FAIL");
  if (line == nullptr) {
    program->log =
        "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'fw_forward' for "
        "'sm_80'\n"
        "    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem, 560 bytes cmem[0]\n";
    return 0;
  }
  int number = 1;
  for (const char* at = program->text.c_str(); at != line; ++at) number += *at == '\n';
  program->log = program->name + "(" + std::to_string(number) +
                 "): error: identifier \"FAIL\" is undefined\n\n1 error detected\n";
  return 6;
}

int nvrtcGetCUBINSize(const Program* program, std::size_t* size) {
  *size = program->binary.size();
  return 0;
}

int nvrtcGetCUBIN(const Program* program, char* out) {
  std::memcpy(out, program->binary.data(), program->binary.size());
  return 0;
}

int nvrtcGetPTXSize(const Program* program, std::size_t* size) {
  return nvrtcGetCUBINSize(program, size);
}
int nvrtcGetPTX(const Program* program, char* out) { return nvrtcGetCUBIN(program, out); }

int nvrtcGetProgramLogSize(const Program* program, std::size_t* size) {
  *size = program->log.size() + 1;
  return 0;
}

int nvrtcGetProgramLog(const Program* program, char* out) {
  std::memcpy(out, program->log.c_str(), program->log.size() + 1);
  return 0;
}

}  // extern "C"
