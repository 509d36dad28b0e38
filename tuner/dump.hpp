// What a compilation leaves for developers: source, machine code and the compiler's log, as files with
// readable names in the folder that FLASHWRIGHT_DUMP_DIR names. Trouble with the folder costs one line
// in the log and never a call.
#pragma once

#include <string>

#include "core/error.hpp"
#include "tuner/builder.hpp"

namespace flashwright {

class Dump {
 public:
  // Writes the source. Does nothing, as all that follows, when the variable is not set.
  Dump(const Built& built, const Problem& problem);

  void compiled(const Binary& binary) const;

  // Writes the log, and adds to the detail of a compiler's refusal where the source lies.
  void failed(Error& error) const;

 private:
  bool write(const std::string& ending, const std::string& bytes) const;

  std::string stem_;    // path of the files, without the ending; empty: nothing is written
  std::string source_;  // path of the source; empty: it could not be written
};

}  // namespace flashwright
