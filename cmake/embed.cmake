# Writes a C++ file with the text of every file below a folder, as raw strings in pieces.
#   cmake -DFOLDER=... -DOUTPUT=... -DARRAY=kTemplates -DCOUNT=kTemplateCount -DSTRUCT=EmbeddedFile -P embed.cmake
file(GLOB_RECURSE files RELATIVE ${FOLDER} ${FOLDER}/[a-z]*)
list(SORT files)
set(rows "")
set(count 0)
foreach(path IN LISTS files)
  file(READ ${FOLDER}/${path} hex HEX)
  # Bytes, not raw strings: no length limit of a literal and no delimiter to clash with.
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "const unsigned char file${count}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${path}\", reinterpret_cast<const char*>(file${count})},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUTPUT}.new
"// Written by cmake/embed.cmake.
#include <cstddef>

namespace flashwright {
namespace {
${arrays}}  // namespace

struct ${STRUCT} {
  const char* path;
  const char* text;
};
extern const ${STRUCT} ${ARRAY}[];
extern const std::size_t ${COUNT};
const ${STRUCT} ${ARRAY}[] = {
${rows}};
const std::size_t ${COUNT} = ${count};

}  // namespace flashwright
")
file(RENAME ${OUTPUT}.new ${OUTPUT})
