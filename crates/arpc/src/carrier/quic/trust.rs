//! The certificate that a client takes for the server's: the one that was shown first.
//!
//! Nobody signs certificates here. The first connection notes the certificate that it is shown, and later ones refuse
//! any other, as ssh does. TLS proves that the peer that shows the certificate has its key.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::identity::Fingerprint;

/// A server that is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pin {
    /// The fingerprint that the server had at the first connection.
    pub fingerprint: Fingerprint,
    /// The place where the fingerprint is noted, for people.
    pub noted_in: String,
}

/// A verifier that takes one known certificate, or the first.
#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) known: Option<Fingerprint>,
    /// The fingerprint that was shown.
    pub(super) shown: Arc<OnceLock<Fingerprint>>,
    pub(super) provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = *self.shown.get_or_init(|| Fingerprint::of(certificate));
        match self.known {
            Some(known) if known != shown => {
                Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
            }
            Some(_) | None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
