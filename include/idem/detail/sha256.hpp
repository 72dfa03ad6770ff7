// SPDX-License-Identifier: MIT
#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>

namespace idem::detail {

using Sha256Digest = std::array<std::byte, 32>;

/// SHA-256 over bytes that arrive in pieces.
class Sha256 {
 public:
  Sha256() : context_{EVP_MD_CTX_new()} {
    // Fetched once: a fetch by name costs more than the hash. It is left to the end of the process, so that
    // destructors of other statics may still hash.
    static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    if (!context_ || !algorithm) fail();
    if (EVP_DigestInit_ex2(context_.get(), algorithm, nullptr) != 1) fail();
  }

  void update(const void* data, std::size_t size) {
    if (EVP_DigestUpdate(context_.get(), data, size) != 1) fail();
  }

  /// Ends the hash; call it once.
  [[nodiscard]] Sha256Digest finish() {
    Sha256Digest digest{};
    if (EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr) != 1)
      fail();
    return digest;
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const noexcept { EVP_MD_CTX_free(context); }
  };

  [[noreturn]] static void fail() {
    throw std::runtime_error{
        "idem: libcrypto cannot compute SHA-256; check the OpenSSL providers of this process"};
  }

  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

/// The pieces that both kinds of structured fingerprint are made of. Stored: they never change.
class TaggedHash {
 public:
  void tag(char kind) { sha256_.update(&kind, 1); }

  /// 8 bytes, big-endian.
  void number(std::uint64_t value) {
    std::array<unsigned char, 8> bytes{};
    for (std::size_t i = bytes.size(); i-- > 0; value >>= 8U)
      bytes[i] = static_cast<unsigned char>(value & 0xFFU);
    sha256_.update(bytes.data(), bytes.size());
  }

  void sized(char kind, const void* data, std::size_t size) {
    tag(kind);
    number(size);
    sha256_.update(data, size);
  }

  [[nodiscard]] Sha256Digest finish() { return sha256_.finish(); }

 private:
  Sha256 sha256_;
};

}  // namespace idem::detail
