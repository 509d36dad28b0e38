#include "errors.hpp"

namespace fwpy {
namespace {

constexpr int kTypeStatus = -1;  // no status of the C interface: an error of type

void raise(int status, const char* message, const char* detail) {
  const nb::object make = nb::module_::import_("flashwright._errors").attr("make");
  const nb::object error = make(status, message, detail);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const flashwright::Failure& failure) {
    raise(failure.status, failure.message.c_str(), failure.detail.c_str());
  } catch (const TypeFault& fault) {
    raise(kTypeStatus, fault.what(), "");
  } catch (const ValueFault& fault) {
    raise(FLASHWRIGHT_BAD_ARGUMENT, fault.what(), "");
  }
}

std::string sentence(const std::string& name, const std::string& given,
                     const std::string& expected) {
  return name + ": given " + given + "; expected " + expected;
}

}  // namespace

void bad_type(const std::string& name, const std::string& given, const std::string& expected) {
  throw TypeFault(sentence(name, given, expected));
}

void bad_value(const std::string& name, const std::string& given, const std::string& expected) {
  throw ValueFault(sentence(name, given, expected));
}

void register_errors() { nb::register_exception_translator(translate); }

nb::object loads(char* text) {
  const std::string json = flashwright::take(text);
  return nb::module_::import_("json").attr("loads")(nb::str(json.c_str(), json.size()));
}

}  // namespace fwpy
