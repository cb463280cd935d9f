//! Slot: a volume of a server: served, or refused with the reason, and opened again from its disk after the disk has
//! failed.
//!
//! A volume that has failed ends as if it had been killed: its connections are closed, nothing more is answered, and
//! what was acknowledged is on the disk. The volume is opened again when nothing is left of it in memory, under an
//! epoch of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use mafs_arpc::{blocking, watch};
use mafs_proto::{Clock, FsError, ServerEpoch, VolumeName};

use crate::core::Refusal;
use crate::store::{Identity, ListedVolume, Storage, VolumeFile};
use crate::volume::Volume;
use crate::{ServerConfig, ServerError};

/// Number of times that a volume is opened again before somebody has to look after it: that is some seven minutes.
const TRIES_MAX: u32 = 12;

/// The first pause before a volume is opened again, and the longest; each is twice the one before.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Time that the users of a volume may take to end.
const END_MAX: Duration = Duration::from_secs(60);

/// The opener of volumes.
pub(crate) struct Opener {
    storage: Arc<dyn Storage>,
    config: ServerConfig,
    clock: Arc<dyn Clock>,
    /// Held while an epoch is taken.
    epochs: Mutex<()>,
}

impl Opener {
    pub(crate) fn new(storage: Arc<dyn Storage>, config: ServerConfig, clock: Arc<dyn Clock>) -> Self {
        Self { storage, config, clock, epochs: Mutex::new(()) }
    }

    fn open(&self, name: &VolumeName, file: VolumeFile, epoch: ServerEpoch) -> Result<Volume, ServerError> {
        Volume::open(&*self.storage, name, file, epoch, &self.config, Arc::clone(&self.clock))
    }

    /// Opens a volume once more, which shows that its disk takes what is written.
    fn open_again(&self, name: &VolumeName, file: VolumeFile) -> Result<Volume, ServerError> {
        let epoch = self.next_epoch()?;
        self.open(name, file, epoch)
    }

    /// Takes an epoch that nothing has had, durably.
    fn next_epoch(&self) -> Result<ServerEpoch, ServerError> {
        let _taking = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        let disk = self.storage.disk();
        let missing = || ServerError::Damaged { path: "server.json".to_owned(), why: "it is missing".to_owned() };
        let mut identity = Identity::load(&*disk)?.ok_or_else(missing)?;
        identity.epoch = ServerEpoch(identity.epoch.0 + 1);
        identity.save(&*disk)?;
        Ok(identity.epoch)
    }
}

/// A volume, or the reason why it cannot be served.
pub(crate) struct Slot {
    state: Mutex<State>,
}

enum State {
    Serving(Arc<Volume>),
    Refusing(Refusal),
}

impl Slot {
    /// Opens a volume, and again whenever its disk has failed, until `stopping` says so or is gone. One that cannot be
    /// opened at first is reported, and refuses its clients. Must be called in a tokio runtime.
    pub(crate) fn open(
        opener: &Arc<Opener>,
        (name, file): ListedVolume,
        epoch: ServerEpoch,
        stopping: watch::Receiver<bool>,
    ) -> Arc<Self> {
        let opened = file.and_then(|file| Ok((file, opener.open(&name, file, epoch)?)));
        let (file, volume) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let refusal = refusal_of(&name, &error);
                return Arc::new(Self { state: Mutex::new(State::Refusing(refusal)) });
            }
        };
        let slot = Arc::new(Self { state: Mutex::new(State::Serving(Arc::new(volume))) });
        let (opener, clock) = (Arc::downgrade(opener), Arc::clone(&opener.clock));
        let keeper = Keeper { slot: Arc::downgrade(&slot), opener, clock, name, file };
        tokio::spawn(keeper.run(stopping));
        slot
    }

    /// Returns the volume, if it is served.
    ///
    /// # Errors
    /// The reason why it is not.
    pub(crate) fn volume(&self) -> Result<Arc<Volume>, Refusal> {
        match &*self.state() {
            State::Serving(volume) => Ok(Arc::clone(volume)),
            State::Refusing(refusal) => Err(refusal.clone()),
        }
    }

    fn refuse(&self, refusal: Refusal) {
        *self.state() = State::Refusing(refusal);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the refusal for a volume that cannot be opened.
fn refusal_of(name: &VolumeName, error: &ServerError) -> Refusal {
    tracing::error!(volume = %name, "{error}; it is not served");
    Refusal::new(FsError::VolumeDamaged, error.to_string())
}

/// A task that waits for the failures of a volume.
struct Keeper {
    slot: Weak<Slot>,
    opener: Weak<Opener>,
    clock: Arc<dyn Clock>,
    name: VolumeName,
    file: VolumeFile,
}

impl Keeper {
    async fn run(self, mut stopping: watch::Receiver<bool>) {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => {}
            () = self.keep() => {}
        }
    }

    /// Opens the volume again after each failure. Returns when it is not to be opened again.
    async fn keep(&self) {
        let mut tries = 0;
        loop {
            let Some(Ok(volume)) = self.slot.upgrade().map(|slot| slot.volume()) else { return };
            let (failure, gone, served) = (volume.failure().clone(), volume.gone(), self.clock.now());
            drop(volume);
            let why = failure.wait().await;
            if self.clock.now().since(served) > PAUSE_MAX {
                tries = 0;
            }
            let volume = &self.name;
            tracing::error!(%volume, "its disk has failed: {why}; nothing is answered until it is opened again");
            self.refuse(format!(
                "the disk of the volume {} has failed at the server ({why}); it is opened again",
                self.name
            ));
            if tokio::time::timeout(END_MAX, gone).await.is_err() {
                return self.give_up("it is still in use");
            }
            if !self.open_again(&mut tries).await {
                return;
            }
        }
    }

    /// Tries to open the volume again. Returns whether it is served again.
    async fn open_again(&self, tries: &mut u32) -> bool {
        while *tries < TRIES_MAX {
            tokio::time::sleep(PAUSE_FIRST.saturating_mul(1 << (*tries).min(16)).min(PAUSE_MAX)).await;
            *tries += 1;
            let (Some(slot), Some(opener)) = (self.slot.upgrade(), self.opener.upgrade()) else { return false };
            match blocking(|| opener.open_again(&self.name, self.file)) {
                Ok(volume) => {
                    let epoch = volume.epoch().0;
                    tracing::warn!(volume = %self.name, epoch, "opened again from the disk and served");
                    *slot.state() = State::Serving(Arc::new(volume));
                    return true;
                }
                Err(error) if error.is_damage() => {
                    slot.refuse(refusal_of(&self.name, &error));
                    return false;
                }
                Err(error) => {
                    tracing::error!(volume = %self.name, "{error}; it is tried again");
                    self.refuse(format!("{error} at the server, since its disk has failed; it is tried again"));
                }
            }
        }
        self.give_up("the disk does not work");
        false
    }

    fn give_up(&self, why: &str) {
        tracing::error!(volume = %self.name, "not opened again: {why}; mend that and restart the server");
        self.refuse(format!("the disk of the volume {} has failed: mend it and restart the server", self.name));
    }

    fn refuse(&self, why: String) {
        if let Some(slot) = self.slot.upgrade() {
            slot.refuse(Refusal::new(FsError::Io, why));
        }
    }
}
