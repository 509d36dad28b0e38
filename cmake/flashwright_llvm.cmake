# fw_llvm: the LLVM that the CPU plugin is built on, newest of 16 to 20.
option(FLASHWRIGHT_LLVM_STATIC "Link LLVM's archives into the CPU plugin instead of the shared libLLVM" OFF)

if(NOT TARGET fw_llvm)
  if(NOT LLVM_FOUND AND NOT LLVM_DIR)
    # Distributions keep each version in a folder of its own. LLVM's version file accepts no bare major
    # number, so the folders are tried one by one.
    foreach(version IN ITEMS 20 19 18 17 16)
      find_package(LLVM QUIET CONFIG NO_DEFAULT_PATH
        PATHS /usr/lib/llvm-${version} /usr/lib64/llvm${version} /usr/local/opt/llvm@${version})
      if(LLVM_FOUND)
        break()
      endif()
    endforeach()
  endif()
  if(NOT LLVM_FOUND)
    find_package(LLVM QUIET CONFIG)
  endif()
  if(NOT LLVM_FOUND OR LLVM_VERSION_MAJOR LESS 16 OR LLVM_VERSION_MAJOR GREATER 20)
    message(FATAL_ERROR "The CPU backend needs LLVM 16 to 20 (Debian: llvm-19-dev). "
                        "Set LLVM_DIR to its CMake folder, or FLASHWRIGHT_CPU=OFF.")
  endif()
  message(STATUS "LLVM ${LLVM_PACKAGE_VERSION} in ${LLVM_DIR}")

  add_library(fw_llvm INTERFACE)
  target_include_directories(fw_llvm SYSTEM INTERFACE ${LLVM_INCLUDE_DIRS})
  separate_arguments(llvm_definitions UNIX_COMMAND "${LLVM_DEFINITIONS}")
  target_compile_definitions(fw_llvm INTERFACE ${llvm_definitions})
  if(NOT LLVM_ENABLE_RTTI)
    # Classes derived from LLVM's would name type information that such a build does not have.
    target_compile_options(fw_llvm INTERFACE -fno-rtti)
  endif()
  if(FLASHWRIGHT_LLVM_STATIC)
    llvm_map_components_to_libnames(llvm_libraries
      orcjit native nativecodegen asmparser irreader ${LLVM_NATIVE_ARCH}disassembler)
    target_link_libraries(fw_llvm INTERFACE ${llvm_libraries})
  else()
    target_link_libraries(fw_llvm INTERFACE LLVM)
    if("AArch64" IN_LIST LLVM_TARGETS_TO_BUILD)
      # The shared library has every target anyway: kernels for ARM can be compiled here, not run.
      target_compile_definitions(fw_llvm INTERFACE FLASHWRIGHT_LLVM_AARCH64)
    endif()
  endif()
endif()
