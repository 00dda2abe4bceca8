//! A thread that looks after a mount once a second, or when it is woken: files that stay open for
//! writing, a volume that gets full, and commits where the kernel does not say when one is wanted.

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

/// How often it looks.
const EVERY: Duration = Duration::from_secs(1);

/// What it looks after, and by what means.
pub(crate) struct Keeper<B> {
    pub(crate) fs: B,
    /// Everything is to be committed at each look.
    pub(crate) commits: Arc<AtomicBool>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) room: Arc<Room<B>>,
    /// A desk of its own: all dirty pages take long, and nobody waits for them.
    pub(crate) aside: Aside,
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) has_told: AtomicBool,
    pub(crate) has_stopped: AtomicBool,
}

/// What wakes it.
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
    /// Have a look now.
    pub(crate) fn ring(&self) {
        let mut state = self.state.lock();
        if !state.is_rung {
            state.is_rung = true;
            self.rung.notify_one();
        }
    }

    /// There is nothing to look after any more.
    pub(crate) fn dismiss(&self) {
        self.state.lock().is_over = true;
        self.rung.notify_one();
    }

    /// Waits for the next look; false when there is none.
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
    /// Starts the thread; it ends when the bell's owner dismisses it.
    pub(crate) fn start(self) -> Result<(), SessionError> {
        spawn("keeper", move || {
            while self.bell.wait() {
                self.look();
            }
        })
    }

    fn look(&self) {
        self.look_at_the_image();
        if self.commits.load(Ordering::Relaxed)
            && let Err(e) = self.fs.sync()
        {
            tracing::debug!("committing: {e}");
        }
        self.ask_soon(self.opens.watch_fresh());
        if self.fs.check_writable().is_err() && !self.has_stopped.swap(true, Ordering::Relaxed) {
            // Who writes into the page cache is told by the next write(2).
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

    /// Tells, once, when the file that the volume is in was cut or removed. Syncs tell too.
    fn look_at_the_image(&self) {
        if let Err(e) = self.fs.check_backing()
            && !self.has_told.swap(true, Ordering::Relaxed)
        {
            let message = format!("{e}: nothing that is written from now on is kept");
            tracing::error!("{message}");
            system_log::write(Severity::Error, &message);
        }
    }

    /// Has the kernel ask for the attributes of files that are being written.
    fn ask_soon(&self, files: Vec<InodeNo>) {
        let Some(notifier) = self.notifier.get() else {
            return;
        };
        for ino in files {
            notifier.attributes_changed(node(ino));
        }
    }

    /// Has the kernel forget files of which it may have wrong times and a wrong size.
    fn have_forgotten(&self, files: Vec<InodeNo>) {
        if let Some(notifier) = self.notifier.get()
            && !files.is_empty()
        {
            let nodes: Vec<u64> = files.into_iter().map(node).collect();
            notifier.forget(&nodes);
        }
    }

    /// Has the dirty pages written that may need what is left.
    fn settle(&self, files: &[InodeNo]) {
        let pages = Pages::of_files(files.iter().copied());
        let room = self.room.clone();
        let dirtied = room.dirtied();
        self.aside.after_pages(pages, move || room.settled(dirtied));
    }
}
