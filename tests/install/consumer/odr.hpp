// SPDX-License-Identifier: MIT
#pragma once
#include <string>

std::string key_of_another_unit();
