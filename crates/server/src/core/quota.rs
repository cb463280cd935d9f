//! Quota: how many bytes the files of a volume may have together.

use mafs_proto::FsError;

use super::Refusal;

/// Checks a change of the volume's used bytes. A change that makes them fewer is allowed even beyond the quota, which
/// may have been lowered since: a full volume can always be emptied.
///
/// # Errors
/// [`FsError::Quota`].
pub(crate) fn check(quota_bytes: Option<u64>, used_before: u64, used_after: u64) -> Result<(), Refusal> {
    match quota_bytes {
        Some(quota) if used_after > used_before && used_after > quota => {
            let detail = format!("the volume's quota of {quota} bytes is used up: {used_before} are in use");
            Err(Refusal::new(FsError::Quota, detail))
        }
        Some(_) | None => Ok(()),
    }
}
