# fw_library(NAME SOURCES... [LINK ...]): one internal module. Internal modules are static and hidden;
# only the C interface of libflashwright is exported.
function(fw_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC ${arg_LINK} PRIVATE ${arg_PRIVATE})
  fw_settings(${name})
endfunction()

function(fw_settings name)
  target_include_directories(${name} PRIVATE ${flashwright_SOURCE_DIR} ${flashwright_SOURCE_DIR}/include)
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_compile_options(${name} PRIVATE -ffile-prefix-map=${flashwright_SOURCE_DIR}/= -Wall -Wextra -Wpedantic -Wshadow
    $<$<COMPILE_LANGUAGE:CXX>:-Wconversion -Wno-sign-conversion>
    $<$<BOOL:${FLASHWRIGHT_WERROR}>:-Werror>)
  if(FLASHWRIGHT_SANITIZE)
    target_compile_options(${name} PRIVATE -fsanitize=${FLASHWRIGHT_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${name} PRIVATE -fsanitize=${FLASHWRIGHT_SANITIZE})
  endif()
  set_target_properties(${name} PROPERTIES
    CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

# Turns every file below FOLDER into an array of {path, text} in the source OUTPUT, made again when one changes.
function(fw_embed)
  cmake_parse_arguments(arg "" "OUTPUT;FOLDER;ARRAY;COUNT;STRUCT" "" ${ARGN})
  file(GLOB_RECURSE inputs CONFIGURE_DEPENDS ${arg_FOLDER}/[a-z]*)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${arg_OUTPUT})
  set(script ${flashwright_SOURCE_DIR}/cmake/embed.cmake)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DFOLDER=${arg_FOLDER} -DOUTPUT=${output} -DARRAY=${arg_ARRAY} -DCOUNT=${arg_COUNT}
            -DSTRUCT=${arg_STRUCT} -P ${script}
    DEPENDS ${inputs} ${script}
    COMMENT "Embedding ${arg_FOLDER}")
endfunction()
