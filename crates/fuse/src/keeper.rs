//! The keeper: a thread that looks after a mount once a second, or when it is woken. It deals with
//! files that stay open for writing, with a volume that gets full, and with commits where the
//! kernel does not ask for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stetfs_format::InodeNo;

use crate::aside::{Aside, Pages};
use crate::attr::node;
use crate::backend::Backend;
use crate::opens::Opens;
use crate::room::{Change, Room};
use crate::session::end::{SessionError, spawn};
use crate::system_log::{self, Severity};
use crate::wire::Notifier;

/// How often the keeper looks.
const EVERY: Duration = Duration::from_secs(1);

/// What the keeper looks after, and its means.
pub(crate) struct Keeper<B> {
    pub(crate) fs: B,
    /// True: each look commits everything.
    pub(crate) commits: Arc<AtomicBool>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) room: Arc<Room<B>>,
    /// Its own thread for pages: writing all dirty pages takes long, and nobody waits for them.
    pub(crate) aside: Aside,
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) has_told: AtomicBool,
    pub(crate) has_stopped: AtomicBool,
}

/// Wakes the keeper.
#[derive(Default)]
pub(crate) struct Bell {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Default)]
struct State {
    is_rung: bool,
    is_over: bool,
}

impl Bell {
    /// Has the keeper look now.
    pub(crate) fn ring(&self) {
        let mut state = self.state.lock();
        if !state.is_rung {
            state.is_rung = true;
            self.rung.notify_one();
        }
    }

    /// Ends the keeper: there is nothing to look after any more.
    pub(crate) fn dismiss(&self) {
        self.state.lock().is_over = true;
        self.rung.notify_one();
    }

    /// Waits for the next look. False: there is none.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_rung && !state.is_over {
            self.rung.wait_for(&mut state, EVERY);
        }
        state.is_rung = false;
        !state.is_over
    }
}

impl<B: Backend> Keeper<B> {
    /// Starts the thread. It ends when the bell's owner dismisses it.
    pub(crate) fn start(self) -> Result<(), SessionError> {
        spawn("keeper", move || {
            while self.bell.wait() {
                self.look();
            }
        })
    }

    fn look(&self) {
        // What is taken from a list here is told to the kernel here.
        let _pass = self.notifier.get().map(Notifier::pass);
        self.look_at_the_image();
        if self.commits.load(Ordering::Relaxed)
            && let Err(e) = self.fs.sync()
        {
            tracing::debug!("committing: {e}");
        }
        self.ask_soon(self.opens.watch_fresh());
        if self.fs.check_writable().is_err() && !self.has_stopped.swap(true, Ordering::Relaxed) {
            // Writers into the page cache learn it at their next write(2).
            self.ask_soon(self.opens.watch_all());
        }
        self.have_forgotten(self.opens.take_stale());
        match self.room.look() {
            Change::None => {}
            Change::Short => self.ask_soon(self.opens.watch_all()),
            Change::Tight => {
                let writers = self.opens.watch_all();
                self.ask_soon(writers.clone());
                self.settle(&writers);
            }
        }
    }

    /// Reports, once, that the volume's file was truncated or removed. Syncs report it too.
    fn look_at_the_image(&self) {
        if let Err(e) = self.fs.check_backing()
            && !self.has_told.swap(true, Ordering::Relaxed)
        {
            let message = format!("{e}: everything written from now on is lost");
            tracing::error!("{message}");
            system_log::write(Severity::Error, &message);
        }
    }

    /// Makes the kernel ask for the attributes of files that are being written.
    fn ask_soon(&self, files: Vec<InodeNo>) {
        let Some(notifier) = self.notifier.get() else {
            return;
        };
        for ino in files {
            notifier.attributes_changed(node(ino));
        }
    }

    /// Makes the kernel forget files of which it may have wrong times and a wrong size.
    fn have_forgotten(&self, files: Vec<InodeNo>) {
        if let Some(notifier) = self.notifier.get()
            && !files.is_empty()
        {
            let nodes: Vec<u64> = files.into_iter().map(node).collect();
            notifier.forget(&nodes);
        }
    }

    /// Has those dirty pages written that may need the room that is left.
    fn settle(&self, files: &[InodeNo]) {
        let pages = Pages::of_files(files.iter().copied());
        let room = self.room.clone();
        let dirtied = room.dirtied();
        self.aside.after_pages(pages, move || room.settled(dirtied));
    }
}
