#include <openssl/x509v3.h>
#include <sys/stat.h>

#include "common/tls_state.h"

namespace ddprun {

namespace {

constexpr std::string_view kScheme = "ddprun:";

std::string text_of(const ASN1_STRING* text) {
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                     static_cast<std::size_t>(ASN1_STRING_length(text)));
}

}  // namespace

Result<void> use_files(SSL_CTX* context, const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty() || files.ca.empty()) {
    return Error(Errc::invalid_argument, "--tls-cert, --tls-key and --tls-ca go together: one of them is missing");
  }
  struct stat info {};
  if (::stat(files.key.c_str(), &info) != 0) return Error::from_errno(errno, "--tls-key " + files.key);
  if ((info.st_mode & 077) != 0) {
    return Error(Errc::invalid_argument, "--tls-key " + files.key + ": others may read it: chmod 600 it");
  }
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    return openssl_tls_error(Errc::malformed, "--tls-cert " + files.certificate + " is no certificate in PEM");
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return openssl_tls_error(Errc::malformed,
                             "--tls-key " + files.key + " is no private key in PEM, or not that of --tls-cert");
  }
  if (SSL_CTX_load_verify_file(context, files.ca.c_str()) != 1) {
    return openssl_tls_error(Errc::malformed, "--tls-ca " + files.ca + " holds no certificate in PEM");
  }
  return Result<void>();
}

std::vector<std::string> names_of(X509* certificate) {
  std::vector<std::string> names;
  if (certificate == nullptr) return names;
  const OpensslPtr<GENERAL_NAMES, &GENERAL_NAMES_free> all(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  if (!all) return names;
  for (int i = 0; i < sk_GENERAL_NAME_num(all.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(all.get(), i);
    if (name->type == GEN_URI) {
      const std::string uri = text_of(name->d.uniformResourceIdentifier);
      if (uri.starts_with(kScheme)) names.push_back(uri.substr(kScheme.size()));
    } else if (name->type == GEN_DNS) {
      names.push_back("dns:" + text_of(name->d.dNSName));
    }
  }
  return names;
}

bool names_host(X509* certificate, const std::string& host) {
  if (certificate == nullptr || host.empty()) return false;
  return X509_check_host(certificate, host.data(), host.size(), 0, nullptr) == 1 ||
         X509_check_ip_asc(certificate, host.c_str(), 0) == 1;
}

}  // namespace ddprun
