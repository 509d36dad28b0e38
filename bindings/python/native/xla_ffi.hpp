// What a handler of XLA's foreign function interface (FFI) needs of its C interface: JAX calls it without Python.
//
// Declared here, so that one build serves every JAX. These parts are the same in the versions 0.1 to 0.3 of the
// interface (xla/ffi/api/c_api.h of jaxlib 0.6 to 0.10); structs carry their size and grow at the end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fwpy::xla {

constexpr int kMajor = 0, kOldestMinor = 1, kNewestMinor = 3;

struct Extension {
  std::size_t size;
  int type;
  Extension* next;
};

struct Version {
  std::size_t size;
  Extension* extensions;
  int major, minor;
};

// A call that asks a handler what it is, instead of running it.
constexpr int kMetadataExtension = 1;
struct Metadata {
  std::size_t size;
  Version version;       // written by the handler
  std::uint32_t traits;  // written by the handler
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

enum class ErrorCode : int {
  invalid_argument = 3,
  failed_precondition = 9,
  unimplemented = 12,
  internal = 13,
  unavailable = 14
};

struct Error;
struct Context;

struct ErrorCreateArgs {
  std::size_t size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};
struct StreamGetArgs {
  std::size_t size;
  Extension* extensions;
  Context* context;
  void* stream;  // out
};
struct MemoryAllocateArgs {
  std::size_t size;
  Extension* extensions;
  Context* context;
  std::size_t bytes, alignment;
  void* data;  // out
};
struct MemoryFreeArgs {
  std::size_t size;
  Extension* extensions;
  Context* context;
  std::size_t bytes;
  void* data;
};
struct OrdinalGetArgs {
  std::size_t size;
  Extension* extensions;
  Context* context;
  std::int32_t ordinal;  // out
};

struct Api {
  std::size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorCreateArgs*);
  void (*unused_error_functions[2])();
  void (*unused_handler_register)();
  Error* (*stream_get)(StreamGetArgs*);
  void (*unused_type_and_state_functions[4])();
  Error* (*memory_allocate)(MemoryAllocateArgs*);
  Error* (*memory_free)(MemoryFreeArgs*);
  void (*unused_pool_future_and_run_functions[6])();
  Error* (*ordinal_get)(OrdinalGetArgs*);
};

struct Buffer {
  std::size_t size;
  Extension* extensions;
  int type;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};
constexpr int kFloat16 = 10, kFloat32 = 11, kBfloat16 = 16;  // of Buffer::type

struct Text {
  const char* data;
  std::size_t size;
};
struct Scalar {
  int type;
  void* value;
};
struct Array {
  int type;
  std::size_t size;
  void* data;
};

// Operands and results: all are buffers.
struct Buffers {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  int* types;
  void** items;
};
struct Attributes {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  int* types;  // 1: Array, 3: Scalar, 4: Text
  Text** names;
  void** items;
};

enum class Stage : int { instantiate = 0, prepare = 1, initialize = 2, execute = 3 };

struct CallFrame {
  std::size_t size;
  Extension* extensions;
  const Api* api;
  Context* context;
  Stage stage;
  Buffers operands;
  Buffers results;
  Attributes attributes;
};

}  // namespace fwpy::xla
