//! Multiple-mount protection: the volume says who uses it, for machines that share the device and
//! for the kernel on this one.
//!
//! Only volumes with the feature `mmp` (`mke2fs -O mmp`) have the block; it is written past the
//! journal. A mount that writes does as the kernel does (`fs/ext4/mmp.c`):
//! 1. It reads the block, and refuses a volume that e2fsck has.
//! 2. If another mount left a number, it waits. If the number changes meanwhile, the volume is in
//!    use.
//! 3. It writes a number of its own, waits again if it has waited before, and must find its own
//!    number.
//! 4. While mounted, it changes the number every `s_mmp_interval` seconds. Before each change it
//!    must find its last number; if not, nothing more is written to the volume.
//!
//! A mount without threads of its own (`commit` = `Duration::MAX`) writes its number once. To
//! others it looks like a mount that has died.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use stetfs_format::mmp::{MMP_MIN_CHECK_INTERVAL, MMP_SEQ_MAX, MMP_UPDATE_INTERVAL, Mmp, MmpState};
use stetfs_format::width::low32;
use stetfs_format::{BlockNo, Corrupt, FeatureIncompat, Geometry, Place, Superblock};
use stetfs_journal::{Journal, JournalError};
use stetfs_media::{Block, BlockDev, Cause, Class, Tag};

use super::error::MountError;
use crate::clock::Clock;
use crate::error::Result;

/// By how many seconds a wait may exceed the check interval, as in the kernel.
const WAIT_MAX: u64 = 60;

/// The block while this mount has the volume. [`release`](Self::release) gives the volume back.
/// After a mere drop the block stays as it is, as after a crash.
pub(crate) struct Protection {
    place: Arc<Location>,
    updater: Mutex<Option<Updater>>,
}

struct Updater {
    end: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

/// Where the block is, and what this mount last wrote there.
struct Location {
    dev: Arc<dyn BlockDev>,
    geometry: Geometry,
    block: BlockNo,
    /// Time between updates, in seconds.
    interval: u64,
    clock: Clock,
    ours: Mutex<Ours>,
}

struct Ours {
    /// The whole block as it was before this mount.
    before: Block,
    content: Mmp,
}

impl Protection {
    /// Takes the volume for this mount; `None` when it has no such block.
    ///
    /// # Errors
    /// [`MountError::InUse`]; damage in the block; an error of the device.
    pub(super) fn claim(
        dev: &Arc<dyn BlockDev>,
        sb: &Superblock,
        clock: &Clock,
    ) -> Result<Option<Self>> {
        if !sb.feature_incompat.contains(FeatureIncompat::MMP) {
            return Ok(None);
        }
        let block = BlockNo(sb.mmp_block);
        if !sb.is_valid_range(block, 1) || block.0 <= u64::from(sb.first_data_block) {
            return Err(Corrupt::SuperMmpBlock(block.0).into());
        }
        let (before, found) = read(&**dev, sb, block)?;
        let interval = match sb.mmp_interval {
            0 => MMP_UPDATE_INTERVAL,
            n => n,
        };
        let check = found
            .check_interval
            .max(interval)
            .max(MMP_MIN_CHECK_INTERVAL);
        let check = u64::from(check);
        let wait = Duration::from_secs((2 * check + 1).min(check + WAIT_MAX));
        let in_use = |by: &Mmp| MountError::InUse {
            node: text(&by.nodename),
            device: text(&by.bdevname),
            fsck: by.state == MmpState::Fsck,
        };
        let was_left = match found.state {
            MmpState::Clean => false,
            MmpState::Fsck => return Err(in_use(&found).into()),
            MmpState::Mounted(number) => {
                tracing::warn!(
                    "{}: the volume is in use by {} ({}), or was not cleanly unmounted there: \
                        waiting {} s to see",
                    dev.describe(),
                    text(&found.nodename),
                    text(&found.bdevname),
                    wait.as_secs()
                );
                std::thread::sleep(wait);
                let (_, now) = read(&**dev, sb, block)?;
                if now.state != MmpState::Mounted(number) {
                    return Err(in_use(&now).into());
                }
                true
            }
        };
        let mine = Mmp {
            state: MmpState::Mounted(random()),
            time: clock.seconds(),
            nodename: bytes(rustix::system::uname().nodename().to_bytes()),
            bdevname: bytes(
                dev.describe()
                    .rsplit('/')
                    .next()
                    .unwrap_or_default()
                    .as_bytes(),
            ),
            check_interval: u16::try_from((2 * u64::from(interval)).min(u64::from(u16::MAX)))
                .unwrap_or(u16::MAX)
                .max(MMP_MIN_CHECK_INTERVAL),
        };
        let place = Arc::new(Location {
            dev: dev.clone(),
            geometry: **sb,
            block,
            interval: interval.into(),
            clock: clock.clone(),
            ours: Mutex::new(Ours {
                before,
                content: mine.clone(),
            }),
        });
        place.write(&mine)?;
        if was_left {
            // If two mounts found the same old number, the one that wrote last has the volume.
            std::thread::sleep(wait);
        }
        let (_, now) = read(&**dev, sb, block)?;
        if now.state != mine.state {
            return Err(in_use(&now).into());
        }
        Ok(Some(Self {
            place,
            updater: Mutex::new(None),
        }))
    }

    /// Starts a thread that changes the number as long as the journal lives.
    pub(super) fn keep(&self, journal: Weak<Journal>) {
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        let (place, ending) = (self.place.clone(), end.clone());
        let work = move || {
            loop {
                let deadline = Instant::now() + Duration::from_secs(place.interval);
                let mut is_over = ending.0.lock();
                ending
                    .1
                    .wait_while_until(&mut is_over, |is_over| !*is_over, deadline);
                if *is_over {
                    return;
                }
                drop(is_over);
                let Some(journal) = journal.upgrade() else {
                    return;
                };
                match place.update() {
                    Ok(None) => {}
                    Ok(Some(by)) => {
                        let why =
                            format!("the volume was taken over by {by} while it was mounted here");
                        return journal.abort(JournalError::Unusable(why));
                    }
                    // Others may take the volume from now on. The next update finds out.
                    Err(e) => tracing::error!("multiple-mount protection: {e}"),
                }
            }
        };
        let thread = std::thread::Builder::new().name("stetfs-mmp".to_owned());
        match thread.spawn(work) {
            Ok(thread) => *self.updater.lock() = Some(Updater { end, thread }),
            Err(e) => tracing::error!("no thread for the multiple-mount protection: {e}"),
        }
    }

    /// Gives the volume back, once everything of it is durable.
    pub(super) fn release(&self) -> Result<()> {
        self.stop();
        if let Some(by) = self.place.foreign()? {
            tracing::error!("the volume was taken over by {by} while it was mounted here");
            return Ok(());
        }
        let mut content = self.place.ours.lock().content.clone();
        content.state = MmpState::Clean;
        content.time = self.place.clock.seconds();
        self.place.write(&content)
    }

    /// Restores the block, since the mount is refused.
    pub(super) fn undo(&self) {
        self.stop();
        let before = self.place.ours.lock().before.clone();
        if let Err(e) = self.place.put(&before) {
            tracing::error!("multiple-mount protection: {e}");
        }
    }

    fn stop(&self) {
        let Some(updater) = self.updater.lock().take() else {
            return;
        };
        *updater.end.0.lock() = true;
        updater.end.1.notify_all();
        // The updater holds the journal while it works, so its thread may be the one that drops the
        // volume.
        if updater.thread.thread().id() != std::thread::current().id() {
            let _ = updater.thread.join();
        }
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Location {
    /// Writes the next number; returns who else wrote one, if anybody did.
    fn update(&self) -> Result<Option<String>> {
        if let Some(by) = self.foreign()? {
            return Ok(Some(by));
        }
        let mut content = self.ours.lock().content.clone();
        if let MmpState::Mounted(number) = content.state {
            content.state = MmpState::Mounted(match number {
                MMP_SEQ_MAX.. => 1,
                number => number + 1,
            });
        }
        content.time = self.clock.seconds();
        self.write(&content)?;
        Ok(None)
    }

    fn foreign(&self) -> Result<Option<String>> {
        let (_, now) = read(&*self.dev, &self.geometry, self.block)?;
        let is_ours = now.state == self.ours.lock().content.state;
        Ok((!is_ours).then(|| format!("{} ({})", text(&now.nodename), text(&now.bdevname))))
    }

    fn write(&self, content: &Mmp) -> Result<()> {
        let mut ours = self.ours.lock();
        let mut raw = ours.before.clone();
        content.encode_into(raw.bytes_mut(), &self.geometry);
        self.put(&raw)?;
        ours.content = content.clone();
        Ok(())
    }

    fn put(&self, raw: &Block) -> Result<()> {
        let at = self.geometry.block.start_of(self.block);
        let tag = Tag::new(Class::Superblock, Cause::Control);
        Ok(self.dev.write_durable(at, &[raw.bytes()], tag)?)
    }
}

fn read(dev: &dyn BlockDev, geometry: &Geometry, block: BlockNo) -> Result<(Block, Mmp)> {
    let mut raw = Block::zeroed(geometry.block_size());
    let at = geometry.block.start_of(block);
    dev.read_at(at, raw.bytes_mut(), Tag::read(Class::Superblock))?;
    let found = Mmp::decode(raw.bytes(), geometry).map_err(|e| e.at(Place::Block(block)))?;
    Ok((raw, found))
}

/// Returns a random number, which hardly any other mount draws at the same time.
fn random() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let drawn = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    1 + low32(drawn) % MMP_SEQ_MAX
}

/// Returns a text as a fixed field, cut so that a NUL ends it.
fn bytes<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut field = [0; N];
    let len = text.len().min(N - 1);
    field[..len].copy_from_slice(&text[..len]);
    field
}

fn text(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}
