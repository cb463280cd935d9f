//! A server's key and certificate, and the fingerprint by which clients know it.
//!
//! The certificate names nobody and never ends: a client trusts this one certificate, not its signer.

use std::fmt;
use std::str::FromStr;

use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The name in every certificate, and the one that every client asks for. Nobody compares it.
pub(super) const SERVER_NAME: &str = "mafs";

const FINGERPRINT_BYTES: usize = 32;

/// The SHA-256 of a certificate, as `openssl x509 -fingerprint -sha256` prints it but for the colons.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; FINGERPRINT_BYTES]);

impl Fingerprint {
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut bytes = [0; FINGERPRINT_BYTES];
        // The suite is always there; its hash is SHA-256.
        if let Some(suite) = TLS13_AES_128_GCM_SHA256.tls13() {
            let hash = suite.common.hash_provider.hash(certificate);
            bytes.iter_mut().zip(hash.as_ref()).for_each(|(byte, hashed)| *byte = *hashed);
        }
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// A text that is no fingerprint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no fingerprint: 64 hexadecimal digits are wanted")]
pub struct InvalidFingerprint(String);

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    fn from_str(text: &str) -> Result<Self, InvalidFingerprint> {
        let invalid = || InvalidFingerprint(text.chars().take(2 * FINGERPRINT_BYTES).collect());
        if text.len() != 2 * FINGERPRINT_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        let mut bytes = [0; FINGERPRINT_BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = text.get(2 * index..2 * index + 2).ok_or_else(invalid)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| invalid())?;
        }
        Ok(Self(bytes))
    }
}

/// A server's private key and its certificate.
pub struct ServerKey {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key: PrivateKeyDer<'static>,
    pem: String,
}

/// The reason why there is no key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// No key could be made.
    #[error("cannot make a key and a certificate: {0}")]
    NotMade(String),
    /// The text is no key.
    #[error("no private key with its certificate in PEM: {0}")]
    Invalid(String),
}

impl ServerKey {
    /// Makes a new key and its certificate.
    ///
    /// # Errors
    /// [`KeyError::NotMade`] if the system has no randomness.
    pub fn generate() -> Result<Self, KeyError> {
        let not_made = |error: rcgen::Error| KeyError::NotMade(error.to_string());
        let key = KeyPair::generate().map_err(not_made)?;
        let params = CertificateParams::new([SERVER_NAME.to_owned()]).map_err(not_made)?;
        let certificate = params.self_signed(&key).map_err(not_made)?;
        Self::from_pem(&(key.serialize_pem() + &certificate.pem()))
    }

    /// Reads a key from the text that [`Self::to_pem`] makes.
    ///
    /// # Errors
    /// [`KeyError::Invalid`] if a part is missing or damaged.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let invalid = |part: &str, error: &dyn fmt::Display| KeyError::Invalid(format!("the {part}: {error}"));
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| invalid("key", &error))?;
        let certificate =
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| invalid("certificate", &error))?;
        Ok(Self { certificate, key, pem: pem.to_owned() })
    }

    /// Returns the key and the certificate as text. A program that has the text can pass for this server.
    #[must_use]
    pub fn to_pem(&self) -> &str {
        &self.pem
    }

    /// Returns the fingerprint by which clients know this server.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }
}

impl fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerKey").field("fingerprint", &self.fingerprint()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_after_a_restart_and_another_is_another() {
        let key = ServerKey::generate().unwrap();
        let read = ServerKey::from_pem(key.to_pem()).unwrap();
        assert_eq!((read.fingerprint(), read.to_pem()), (key.fingerprint(), key.to_pem()));
        assert_ne!(ServerKey::generate().unwrap().fingerprint(), key.fingerprint());
    }

    #[test]
    fn what_is_no_key_is_refused_and_no_key_is_ever_shown() {
        let key = ServerKey::generate().unwrap();
        let certificate = &key.to_pem()[key.to_pem().find("-----BEGIN CERT").unwrap()..];
        for text in ["", "hello", certificate, &key.to_pem()[..300]] {
            assert!(matches!(ServerKey::from_pem(text), Err(KeyError::Invalid(_))), "{text}");
        }
        assert_eq!(format!("{key:?}"), format!("ServerKey {{ fingerprint: {:?}, .. }}", key.fingerprint()));
    }

    #[test]
    fn a_fingerprint_is_the_sha_256_and_reads_as_it_is_written() {
        let of_nothing = Fingerprint::of(&CertificateDer::from(&b""[..]));
        let text = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!((of_nothing.to_string(), text.parse()), (text.to_owned(), Ok(of_nothing)));
        for wrong in ["", "e3", &text[1..], &text.replace('e', "+"), &format!("{text}0"), &"é".repeat(32)] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
    }
}
