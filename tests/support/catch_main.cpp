// SPDX-License-Identifier: MIT

#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER  // Catch2 2.x: the library itself is compiled here
#endif
#include "support/catch.hpp"

int main(int argc, char** argv) {
  Catch::Session session;
  // A test that asserts nothing cannot fail; a filter that matches nothing (3.x refuses it by itself)
  // neither.
#if defined(CATCH_CONFIG_RUNNER)
  constexpr auto warnings = Catch::WarnAbout::NoAssertions | Catch::WarnAbout::NoTests;
#else
  constexpr auto warnings = Catch::WarnAbout::NoAssertions | Catch::WarnAbout::UnmatchedTestSpec;
#endif
  session.configData().warnings = static_cast<Catch::WarnAbout::What>(warnings);
  session.configData().filenamesAsTags = true;
  return session.run(argc, argv);
}
