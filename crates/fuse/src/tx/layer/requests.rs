//! The requests for layers: BEGIN, FILL, LAY_OVER.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use stetfs::{Caller, Kind};
use stetfs_format::InodeNo;
use stetfs_format::width::usize_as_u64;

use super::apply::Told;
use super::make::Where;
use super::notes::Notes;
use super::plan::{PLACE, TRASH, UPPER};
use super::{Active, LAY_OVER_LEN};
use crate::attr::{inode, node};
use crate::backend::Backend;
use crate::errno::{Outcome, errno};
use crate::opens::How;
use crate::server::FsServer;
use crate::tx::groups::{Name, new_name};
use crate::wire::abi::{self, InHeader};
use crate::wire::{Answer, Answered, Ticket};

/// The answer to LAY_OVER: the request's record, with the path of the file that was in the way.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Laid {
    out: abi::IoctlOut,
    what: [u8; LAY_OVER_LEN],
}

impl Laid {
    fn new(name: &Name, told: Result<(), Told>) -> Self {
        let mut laid = Self {
            out: abi::IoctlOut::default(),
            what: [0; LAY_OVER_LEN],
        };
        let (head, path) = laid.what.split_at_mut(name.len());
        head.copy_from_slice(name);
        if let Err(Told { errno, path: of }) = told {
            laid.out.result = -errno.raw_os_error();
            // The last byte stays 0, to end the path.
            let room = path.len() - 1;
            let len = of.len().min(room);
            path[..len].copy_from_slice(&of[..len]);
        }
        laid
    }
}

impl<B: Backend> FsServer<B> {
    /// Begins a layer. Returns its name.
    pub(crate) fn begin_layer(&self, ino: InodeNo, handle: u64) -> Outcome<Name> {
        if !How::from_bits_truncate(handle).contains(How::WRITES) {
            return Err(Errno::BADF);
        }
        self.check_groups()?;
        let name = new_name()?;
        let mut active = self.layer.active.lock();
        if active.is_some() {
            return Err(Errno::BUSY);
        }
        *active = Some(Active {
            name,
            owner: (ino, handle),
            notes: Notes::default(),
            making: Arc::default(),
        });
        self.layer.is_active.store(true, Ordering::Release);
        Ok(name)
    }

    /// Carries out a batch of records in the layer of this directory.
    pub(crate) fn fill_layer(
        &self,
        header: &InHeader,
        data: &[u8],
        answer: &mut Answer<'_>,
    ) -> Outcome<()> {
        let name = *data.first_chunk().ok_or(Errno::INVAL)?;
        let batch = data.get(LAY_OVER_LEN..).ok_or(Errno::INVAL)?;
        let c = Caller {
            checks: true,
            ..match header.uid {
                // Root's groups do not matter.
                0 => self.caller(header),
                _ => self.caller_with_groups(header),
            }
        };
        let at = self.find_layer(&c, inode(header.nodeid), &name)?;
        if self.room.wants_a_look() {
            self.bell.ring();
        }
        if self.options.writeback && self.room.is_kept_from(&c, usize_as_u64(batch.len())) {
            return Err(Errno::NOSPC);
        }
        let mut making = at.making.lock();
        // The layer may have ended meanwhile.
        self.layer.check(&name, at.lock)?;
        let Err(e) = making.take(&self.fs, &c, &at, batch) else {
            if making.is_done() {
                // The kernel still has the attributes of the layer's root from when it was empty.
                self.attributes_changed(at.upper);
            }
            return answer.record(&Laid::new(&name, Ok(())));
        };
        let (errno, path) = (errno(&e), making.path());
        tracing::debug!("a layer: {}: {e}", path.escape_ascii());
        answer.record(&Laid::new(&name, Err(Told { errno, path })))
    }

    /// Lays the layer in this directory over the directory.
    pub(crate) fn lay_over(
        &self,
        header: &InHeader,
        data: &[u8],
        ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Outcome<Answered> {
        let name = *data.first_chunk().ok_or(Errno::INVAL)?;
        let c = Caller {
            checks: true,
            ..self.caller_with_groups(header)
        };
        let at = self.find_layer(&c, inode(header.nodeid), &name)?;
        let stale = match self.apply_layer(&c, &at) {
            Ok(stale) => stale,
            Err(told) => {
                tracing::debug!("a layer: {}: {}", told.path.escape_ascii(), told.errno);
                answer.record(&Laid::new(&name, Err(told)))?;
                return Ok(Answered::Now);
            }
        };
        // The kernel's knowledge of these names is wrong now. Telling it may need workers.
        let (ticket, notifier) = (ticket(), self.notifier.clone());
        let dirs = stale.dirs();
        self.aside.after_pages(dirs, move || {
            if let Some(notifier) = notifier.get() {
                for (dir, name) in &stale.names {
                    notifier.name_changed(node(*dir), name);
                }
                for ino in &stale.files {
                    notifier.attributes_changed(node(*ino));
                }
            }
            ticket.answer(Ok(Laid::new(&name, Ok(()))));
        });
        Ok(Answered::Later)
    }

    /// Returns the layer in this directory. Fails unless it is the caller's and has that name.
    fn find_layer(&self, c: &Caller, dir: InodeNo, name: &Name) -> Outcome<Where> {
        let root = Caller::root();
        let find = |dir, name: &str| {
            let found = self.fs.lookup(&root, dir, name.as_bytes());
            found.map_err(|e| match e.kind() {
                Kind::NotFound => Errno::CANCELED,
                _ => errno(&e),
            })
        };
        let place = find(dir, PLACE)?;
        if !c.privileged && place.attr.uid != c.uid {
            return Err(Errno::PERM);
        }
        let lock = find(place.ino, "lock")?.ino;
        Ok(Where {
            making: self.layer.check(name, lock)?,
            dir,
            lock,
            place: place.ino,
            upper: find(place.ino, UPPER)?.ino,
            trash: find(place.ino, TRASH)?.ino,
        })
    }
}
