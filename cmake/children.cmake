# Adds every child folder that has a CMakeLists.txt, in name order.
file(GLOB children CONFIGURE_DEPENDS LIST_DIRECTORIES true *)
foreach(child IN LISTS children)
  if(EXISTS ${child}/CMakeLists.txt)
    add_subdirectory(${child})
  endif()
endforeach()
