//! The server's side: stopping its mount.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{Asked, Refused, Still};
use crate::backend::Backend;
use crate::errno::errno;
use crate::server::FsServer;
use crate::session::end::spawn;
use crate::wire::abi::InHeader;
use crate::wire::{Gate, Link, Ticket};

/// How long requests may be under way before this is given up.
const PATIENCE: Duration = Duration::from_secs(10);

impl<B: Backend> FsServer<B> {
    /// Has `rest` called by a thread of its own, for somebody who may ask for that. It answers who
    /// has asked, unless it fails.
    pub(crate) fn stop_for(
        self: &Arc<Self>,
        from: &InHeader,
        ticket: &dyn Fn() -> Ticket,
        rest: impl FnOnce(&Self, &Asked) -> Result<(), Refused> + Send + 'static,
    ) -> Result<(), Errno> {
        self.administrator(from)?;
        let stopping = &self.stopping;
        if stopping.is_under_way.swap(true, Ordering::SeqCst) {
            return Err(Errno::ALREADY);
        }
        // It must not be under way itself. Over io_uring a worker waits for it.
        let Some((channel, unique)) = ticket().into_question() else {
            let why = "its requests come by io_uring, whose rings end with the process";
            *stopping.refused.lock() = Some(why.to_owned());
            stopping.is_under_way.store(false, Ordering::SeqCst);
            return Err(Errno::OPNOTSUPP);
        };
        let asked = Asked { channel, unique };
        let server = self.clone();
        let body = move || {
            let done = rest(&server, &asked);
            let stopping = &server.stopping;
            stopping.is_under_way.store(false, Ordering::SeqCst);
            if let Err(Refused(errno, why)) = done {
                tracing::warn!("the mount was not stopped: {why}");
                *stopping.refused.lock() = Some(why);
                asked.channel.answer(asked.unique, Err(errno));
            }
        };
        spawn("stop", body).map_err(|_| {
            stopping.is_under_way.store(false, Ordering::SeqCst);
            Errno::AGAIN
        })
    }

    /// Stops the mount: nothing is under way, what comes is kept, and everything is committed.
    pub(crate) fn still(&self) -> Result<(Still, &Link), Refused> {
        let link = self
            .stopping
            .link
            .get()
            .filter(|link| !link.agreed.over_io_uring);
        let link = link.ok_or_else(|| Refused::new(Errno::OPNOTSUPP, "it uses io_uring"))?;
        link.gate.begin_closing();
        let still = Still(link.gate.clone());
        self.quiet(&link.gate)?;
        self.fs
            .sync()
            .map_err(|e| Refused::new(errno(&e), format!("committing: {e}")))?;
        Ok((still, link))
    }

    /// Waits until nothing is under way, and closes the gate.
    fn quiet(&self, gate: &Gate) -> Result<(), Refused> {
        let deadline = Instant::now() + PATIENCE;
        let busy = || {
            let why = format!("requests were under way for {} s", PATIENCE.as_secs());
            Refused::new(Errno::BUSY, why)
        };
        // Pages that are to be dropped are dropped after the job that is there then.
        for _ in 0..2 {
            let (tell, told) = mpsc::channel();
            self.aside.after_pages(Vec::new(), move || {
                let _ = tell.send(());
            });
            told.recv_timeout(deadline.saturating_duration_since(Instant::now()))
                .map_err(|_| busy())?;
        }
        if gate.close(deadline) {
            Ok(())
        } else {
            Err(busy())
        }
    }
}
