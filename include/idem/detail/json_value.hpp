// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/detail/sha256.hpp>
#include <idem/detail/text.hpp>

namespace idem::detail {

/// A parsed text. Every string value has a mark in front, `json_text` or `json_number`: numbers are kept as
/// their canonical decimal text, exact at any size.
using Json = nlohmann::json;
inline constexpr char json_text = 's';
inline constexpr char json_number = 'n';

[[noreturn]] inline void fail_json(const std::string& fault, std::size_t at) {
  throw std::invalid_argument{"idem::fingerprint_json: " + fault + " near byte " + std::to_string(at)};
}

[[nodiscard]] inline std::string_view take_digits(std::string_view& text) noexcept {
  const std::size_t end = (std::min)(text.find_first_not_of("0123456789"), text.size());
  const std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  return digits;
}

[[nodiscard]] inline bool take_any_of(std::string_view& text, std::string_view choices) noexcept {
  if (text.empty() || choices.find(text.front()) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

/// The one spelling of a JSON number's value, `[-]digits e exponent` without zeros at either end of the
/// digits (`0` for zero); nothing when the token is not a JSON number, or its exponent has more than 9
/// digits.
[[nodiscard]] inline std::optional<std::string> canonical_number(std::string_view token) {
  const bool negative = take_any_of(token, "-");
  const std::string_view whole = take_digits(token);
  if (whole.empty() || (whole.size() > 1 && whole.front() == '0')) return std::nullopt;
  std::string_view fraction;
  if (take_any_of(token, ".") && (fraction = take_digits(token)).empty()) return std::nullopt;
  std::string_view power;
  bool smaller = false;
  if (take_any_of(token, "eE")) {
    smaller = token.starts_with('-');
    (void)take_any_of(token, "+-");
    if ((power = take_digits(token)).empty()) return std::nullopt;
    power.remove_prefix((std::min)(power.find_first_not_of('0'), power.size()));
  }
  if (!token.empty()) return std::nullopt;

  std::string digits{whole};
  digits += fraction;
  const std::size_t last = digits.find_last_not_of('0');
  if (last == std::string::npos) return "0";
  if (power.size() > 9) return std::nullopt;
  const std::int64_t magnitude = power.empty() ? 0 : std::stoll(std::string{power});
  const auto shift = static_cast<std::int64_t>(whole.size()) - static_cast<std::int64_t>(last + 1);
  digits.erase(last + 1);
  digits.erase(0, digits.find_first_not_of('0'));
  return (negative ? "-" : "") + digits + 'e' + std::to_string((smaller ? -magnitude : magnitude) + shift);
}

/// Takes the numbers out of a JSON text, in order, and leaves `0` and blanks in their place: the parser would
/// round them to `double`, and refuse what `double` cannot hold.
[[nodiscard]] inline std::vector<std::string> take_numbers(std::string& text) {
  std::vector<std::string> numbers;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '\0') {
      fail_json("the text is not JSON (the parser would take this NUL for its end)", i);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
      const std::size_t end = (std::min)(text.find_first_not_of("+-.eE0123456789", i), text.size());
      std::optional<std::string> number = canonical_number(std::string_view{text}.substr(i, end - i));
      if (!number) fail_json("the text is not JSON, or an exponent has more than 9 digits,", i);
      numbers.push_back(std::move(*number));
      std::fill(text.begin() + static_cast<std::ptrdiff_t>(i),
                text.begin() + static_cast<std::ptrdiff_t>(end), ' ');
      text[i] = '0';
      i = end - 1;
    }
  }
  return numbers;
}

class JsonBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit JsonBuilder(std::vector<std::string> numbers) : numbers_{std::move(numbers)} {}

  [[nodiscard]] Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t) override { return number(); }
  bool number_unsigned(number_unsigned_t) override { return number(); }
  bool number_float(number_float_t, const string_t&) override { return number(); }
  bool string(string_t& value) override { return put(json_text + value); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (open_.back()->contains(name))
      throw std::invalid_argument{
          "idem::fingerprint_json: an object names one member twice, and readers differ in which one counts"};
    member_ = &(*open_.back())[name];
    return true;
  }

  bool parse_error(std::size_t at, const std::string&, const Json::exception&) override {
    fail_json("the text is not JSON", at);
  }

 private:
  static constexpr std::size_t max_depth = 512;

  Json& place(Json&& value) {
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_object()) return *member_ = std::move(value);
    open_.back()->push_back(std::move(value));
    return open_.back()->back();
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool number() { return put(json_number + std::move(numbers_[next_number_++])); }
  bool open(Json container) {
    if (open_.size() == max_depth)
      throw std::invalid_argument{"idem::fingerprint_json: the text nests deeper than " +
                                  std::to_string(max_depth)};
    open_.push_back(&place(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<std::string> numbers_;
  std::size_t next_number_ = 0;
  Json root_;
  std::vector<Json*> open_;
  Json* member_ = nullptr;
};

[[nodiscard]] inline Json parse_json(std::string_view text) {
  std::string parsed{text};
  JsonBuilder builder{take_numbers(parsed)};
  (void)Json::sax_parse(parsed, &builder);
  return builder.take();
}

/// The tokens of a JSON pointer, unescaped.
[[nodiscard]] inline std::vector<std::string> pointer_tokens(const std::string& pointer) {
  try {
    std::vector<std::string> tokens;
    for (Json::json_pointer rest{pointer}; !rest.empty(); rest.pop_back()) tokens.push_back(rest.back());
    std::reverse(tokens.begin(), tokens.end());
    return tokens;
  } catch (const Json::exception&) {
    throw std::invalid_argument{
        "idem::fingerprint_json: \"" + escaped(pointer, 64) +
        "\" is not a JSON pointer: start each step with '/', spell '~' as ~0 and '/' as ~1"};
  }
}

/// What the pointer points at; null when it points at nothing, or into what was discarded.
[[nodiscard]] inline Json* find(Json& value, const std::string& pointer) {
  Json* found = &value;
  for (const std::string& token : pointer_tokens(pointer)) {
    if (found->is_object()) {
      const auto member = found->find(token);
      if (member == found->end()) return nullptr;
      found = &*member;
    } else if (found->is_array()) {
      const bool index = !token.empty() && token.size() <= 9 && (token == "0" || token.front() != '0') &&
                         token.find_first_not_of("0123456789") == std::string::npos;
      const std::size_t at = index ? std::stoul(token) : found->size();
      if (at >= found->size()) return nullptr;
      found = &(*found)[at];
    } else {
      return nullptr;
    }
  }
  return found;
}

inline void discard(Json& value, const std::vector<std::string>& pointers) {
  for (const std::string& pointer : pointers) {
    if (pointer.empty())
      throw std::invalid_argument{
          "idem::fingerprint_json: the pointer \"\" leaves out the whole text: nothing to hash"};
    // Marked, not removed: the next pointer counts the elements of the array as they were sent.
    if (Json* const found = find(value, pointer)) *found = Json(Json::value_t::discarded);
  }
}

/// The encoding behind `fingerprint_json`, in the manner of `FieldHash`. Stored: it never changes.
class JsonHash {
 public:
  JsonHash& add(const Json& value) {
    if (value.is_object()) {
      hash_.tag('{');
      // In the byte order of the names, which is that of the map behind the object.
      for (auto member = value.begin(); member != value.end(); ++member) {
        if (!member->is_discarded()) add_text(member.key()).add(*member);
      }
      hash_.tag('}');
    } else if (value.is_array()) {
      hash_.tag('[');
      for (const Json& element : value) {
        if (!element.is_discarded()) add(element);
      }
      hash_.tag(']');
    } else if (value.is_string()) {
      const std::string& marked = value.get_ref<const std::string&>();
      hash_.sized(marked.front(), marked.data() + 1, marked.size() - 1);
    } else {
      hash_.tag(value.is_null() ? '0' : value.get<bool>() ? 't' : 'f');
    }
    return *this;
  }
  JsonHash& add_text(std::string_view text) {
    hash_.sized(json_text, text.data(), text.size());
    return *this;
  }
  JsonHash& add_absent() {
    hash_.tag('o');
    return *this;
  }
  [[nodiscard]] Sha256Digest finish() { return hash_.finish(); }

 private:
  TaggedHash hash_;
};

[[nodiscard]] inline Sha256Digest hash_selected(Json value, std::vector<std::string> pointers) {
  std::sort(pointers.begin(), pointers.end());
  pointers.erase(std::unique(pointers.begin(), pointers.end()), pointers.end());
  JsonHash hash;
  bool any = false;
  for (const std::string& pointer : pointers) {
    const Json* const found = find(value, pointer);
    any = any || found;
    hash.add_text(pointer);
    found ? hash.add(*found) : hash.add_absent();
  }
  if (!any)
    throw std::invalid_argument{
        "idem::fingerprint_json: no pointer of JsonOnly points at anything, so all such texts "
        "would look the same: check their spelling"};
  return hash.finish();
}

}  // namespace idem::detail
