//! Everything that keeps the clients of a fleet from the server or from acting, from its beginning to its end.

use tokio::time::Instant;

use super::{AMPLE, CLIENTS, Fleet, RESERVE, SIZE_MAX};
use crate::act::log_of;
use crate::faults::{Outage, Strike, some_client};
use crate::machine::CacheImage;
use crate::network::{Connecting, Silence, Way};
use crate::world::Crash;

/// State of a client that is out of touch, or may be.
#[derive(Clone, Copy)]
pub(super) struct Out {
    /// When that ends by itself.
    until: Option<Instant>,
    /// Whether its machine is suspended, so that it does nothing itself.
    sleeps: bool,
}

/// Contents of a machine's disk at an earlier moment.
pub(super) struct Image {
    client: usize,
    cache: CacheImage,
}

impl Fleet {
    /// Lets a fault strike. Returns which client has crashed, and how.
    pub(super) fn strike(&mut self, strike: Strike) -> Result<Option<(usize, Crash)>, String> {
        match strike {
            Strike::Cut(victim) => self.world.machines()[victim].cut_link(),
            Strike::Server(crash) => {
                self.empty_server()?;
                self.world.crash_server(crash);
                self.world.start_server()?;
            }
            Strike::Isolate(victim) if self.out[victim].is_none() => {
                self.world.machines()[victim].isolate();
                self.lose_touch(victim, Out { until: None, sleeps: false });
            }
            Strike::Silent(victim, Outage { silence, time, lost }) if self.out[victim].is_none() => {
                self.world.machines()[victim].fall_silent_for(silence, time, lost);
                self.lose_touch(victim, Out { until: Some(Instant::now() + time), sleeps: false });
            }
            Strike::Isolate(_) | Strike::Silent(..) => {}
            Strike::Client(victim, crash) => {
                self.world.crash_machine(victim, crash);
                // An acting client may wait for the victim until the victim's lease has ended.
                self.versions.borrow_mut().lose_touch(victim);
                self.versions.borrow_mut().restart(victim);
                if crash == Crash::Power {
                    self.versions.borrow_mut().lose_power(victim);
                }
                return Ok(Some((victim, crash)));
            }
        }
        Ok(None)
    }

    fn lose_touch(&mut self, client: usize, out: Out) {
        self.out[client] = Some(out);
        self.versions.borrow_mut().lose_touch(client);
    }

    /// Ends what keeps a client out of touch.
    pub(super) fn reach(&mut self, client: usize) {
        if self.out[client].take().is_some() {
            self.trace.push(format!("{:?}: client {client} is in touch again", self.begun.elapsed()));
            self.world.machines()[client].restore_link();
            self.troubled = Instant::now();
        }
    }

    /// Leaves little room on the server's disk, or none.
    pub(super) fn fill_server(&mut self) -> Result<(), String> {
        let bytes_free = self.random.one_of(&[RESERVE, RESERVE / 2]) + self.random.below(2 * SIZE_MAX);
        self.trace.push(format!("{:?}: {bytes_free} bytes are left at the server", self.begun.elapsed()));
        self.versions.borrow_mut().set_full(true);
        self.world.limit_server_disk(bytes_free).map_err(|error| error.to_string())
    }

    /// Makes room on the server's disk.
    pub(super) fn empty_server(&mut self) -> Result<(), String> {
        if self.versions.borrow_mut().set_full(false) {
            self.trace.push(format!("{:?}: there is room", self.begun.elapsed()));
            self.world.limit_server_disk(AMPLE).map_err(|error| error.to_string())?;
            self.troubled = Instant::now();
        }
        Ok(())
    }

    /// Leaves little room on the disk of a client, or none.
    pub(super) fn fill_client(&mut self) -> Result<(), String> {
        let client = some_client(&mut self.random, CLIENTS);
        let bytes_free = self.random.below(2) * self.random.below(2 * SIZE_MAX);
        self.trace.push(format!("{:?}: {bytes_free} bytes are left at client {client}", self.begun.elapsed()));
        self.full[client] = true;
        self.world.machines()[client].limit_disk(bytes_free).map_err(|error| error.to_string())
    }

    /// Makes room on the disk of a client.
    fn empty_client(&mut self, client: usize) -> Result<(), String> {
        if std::mem::take(&mut self.full[client]) {
            self.trace.push(format!("{:?}: client {client} has room", self.begun.elapsed()));
            self.world.machines()[client].limit_disk(AMPLE).map_err(|error| error.to_string())?;
            self.troubled = Instant::now();
        }
        Ok(())
    }

    pub(super) fn end_outages(&mut self) -> Result<(), String> {
        if self.versions.borrow().is_full() && self.random.once_in(8) {
            self.empty_server()?;
        }
        for client in 0..CLIENTS {
            if self.full[client] && self.random.once_in(8) {
                self.empty_client(client)?;
            }
            let Some(Out { until, .. }) = self.out[client] else { continue };
            let is_over = match until {
                Some(until) => until <= Instant::now(),
                None => self.random.once_in(8),
            };
            if is_over {
                self.reach(client);
            }
        }
        Ok(())
    }

    pub(super) fn end_all_outages(&mut self) -> Result<(), String> {
        for client in 0..CLIENTS {
            self.reach(client);
            self.empty_client(client)?;
        }
        self.empty_server()
    }

    /// Suspends a machine: nothing reaches it, and it does nothing.
    pub(super) fn suspend(&mut self) {
        let victim = some_client(&mut self.random, CLIENTS);
        if self.out[victim].is_some() {
            return;
        }
        let Outage { time, lost, .. } = Outage::random(&mut self.random);
        self.trace.push(format!("{:?}: client {victim} sleeps for {time:?}", self.begun.elapsed()));
        let silence = Silence { way: Way::Both, connecting: Connecting::Hangs };
        self.world.machines()[victim].fall_silent_for(silence, time, lost);
        self.lose_touch(victim, Out { until: Some(Instant::now() + time), sleeps: true });
    }

    /// Whether a client can act.
    pub(super) fn is_awake(&self, client: usize) -> bool {
        !self.out[client].is_some_and(|out| out.sleeps)
    }

    /// Takes an image of the disk of a client that has sent all it has; or puts one back: what that client has done
    /// since, and not sent, is lost.
    pub(super) async fn restore(&mut self) -> Result<(), String> {
        let Some(Image { client, cache }) = self.image.take() else {
            let client = some_client(&mut self.random, CLIENTS);
            let machine = &self.world.machines()[client];
            // A file that was open for writing is taken for changed when its client starts from the image.
            if log_of(machine.client()).is_empty() && machine.client().status().open_files == 0 {
                self.trace.push(format!("{:?}: an image of client {client}", self.begun.elapsed()));
                self.image = Some(Image { client, cache: machine.cache_image() });
            }
            return Ok(());
        };
        self.trace.push(format!("{:?}: client {client} is as in its image", self.begun.elapsed()));
        self.strike(Strike::Client(client, Crash::Kill))?;
        self.versions.borrow_mut().lose_log(client);
        self.world.machines_mut()[client].restore_cache(cache);
        // The image may be of a full disk.
        self.full[client] = true;
        self.empty_client(client)?;
        self.restart(client).await
    }
}
