//! Bringing a volume up and down.
//!
//! Order at mount, each step safe to be cut at:
//! 1. Superblock, features, size, journal area: only read.
//! 2. The journal opens: its scheme refuses options and media that it does not take before it
//!    writes, and then recovers, if there is something to recover. The superblock is read again,
//!    because recovery may have changed it. So are the allocator's records and the root: what
//!    cannot be mounted is refused as it was.
//! 3. "Needs recovery" is set in the superblock and flushed, so that nobody takes the home blocks
//!    for the newest from the first commit on. Without a journal the superblock stops saying
//!    "valid" instead. Then the mount is noted, by a handle, so that each later copy of the
//!    superblock says the same; error marks that were newer than the logged copy are put back.
//! 4. Unlinked inodes and interrupted truncates are finished (`orphan.rs`).
//!
//! At unmount: everything is committed, the journal brings it home and marks itself empty, and only
//! then the superblock says "clean" (counts, `VALID_FS`, no "needs recovery"). The last is that the
//! device is closed.
//!
//! A read-only mount of a dirty volume recovers it when the device can be written, as the kernel
//! does.

mod choice;
pub(crate) mod error;
pub(crate) mod forget;
pub(crate) mod journal_area;
pub(crate) mod mmp;
mod nobarrier;
mod sb_copy;
pub(crate) mod superblock;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;
use stetfs_format::features;
use stetfs_format::superblock::State;
use stetfs_format::width::{u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{FeatureCompat, FeatureIncompat, Superblock};
use stetfs_journal::{Config, Journal, JournalError};
use stetfs_media::{BlockDev, Class, Survives};
use stetfs_scheme::{About, DataMode, Mark, OpenArgs, RecoveryReport, Registration};
use stetfs_sync::RwLock;

use self::choice::{Choice, Found};
use self::error::MountError;
use self::journal_area::journal_extents;
use self::mmp::Protection;
use crate::device::Media;
use crate::error::{Error, Result};
use crate::icache::InodeCache;
use crate::options::{AtomicFiles, MountOptions, OnError};
use crate::place::Placement;
use crate::scope::Scope;
use crate::types::Shutdown;
use crate::volume::{ROOT_INO, Volume, VolumeState, super_place};

/// What mounting found and did.
#[derive(Debug, Clone, Serialize)]
pub struct MountReport {
    /// The journaling scheme.
    pub scheme: &'static str,
    /// Its mode, if it has modes.
    pub data: Option<DataMode>,
    /// What durable content survives, where the volume is in memory or on a NAND part in a file.
    pub survives: Option<Survives>,
    /// By what means of the medium committed blocks get home without being copied, if they do.
    pub remaps: Option<&'static str>,
    /// What recovery did.
    pub recovery: RecoveryReport,
    /// Unlinked inodes that were freed.
    pub orphans_deleted: u32,
    /// Truncates that were finished.
    pub orphans_truncated: u32,
    /// Mounted read-only, whatever was asked.
    pub read_only: bool,
    /// What the user should know, a sentence each.
    pub warnings: Vec<String>,
}

/// What is decided before anything is written.
struct Plan {
    sb: Superblock,
    scheme: &'static Registration,
    data: Option<DataMode>,
    args: OpenArgs,
    /// The log is to be marked empty before the volume is marked in use.
    leftovers: bool,
    /// No changes by operations.
    read_only: bool,
    /// The journal and the superblock may be written: also by a read-only mount that must recover.
    writes: bool,
    warnings: Vec<String>,
}

/// Mounts the volume on these media.
///
/// # Errors
/// [`MountError`], a failed check of a record, or an error of the device or the journal.
pub(crate) fn mount(media: Media, opts: MountOptions) -> Result<(Arc<Volume>, MountReport)> {
    let media = if opts.barrier {
        media
    } else {
        Media {
            home: Arc::new(nobarrier::NoBarrier(media.home)),
            ..media
        }
    };
    let (media, warning) = match opts.superblock {
        None => (media, None),
        Some(at) => {
            let (home, warning) = sb_copy::behind(media.home, at)?;
            (Media { home, ..media }, warning)
        }
    };
    let dev = media.home.clone();
    let mut plan = plan(&media, &opts)?;
    plan.warnings.extend(warning);
    // As in the kernel, who only reads does not ask: not even if that takes a recovery.
    let protection = if plan.writes && !plan.read_only {
        Protection::claim(&dev, &plan.sb, &opts.clock)?
    } else {
        None
    };
    let mounted = mount_planned(media, opts, plan, &protection);
    if let Some(protection) = protection {
        match &mounted {
            Ok((vol, _)) => drop(vol.protection.set(protection)),
            Err(_) => protection.undo(),
        }
    }
    mounted
}

/// Mounts what may be mounted.
fn mount_planned(
    media: Media,
    opts: MountOptions,
    plan: Plan,
    protection: &Option<Protection>,
) -> Result<(Arc<Volume>, MountReport)> {
    let dev = media.home.clone();
    let is_alone = opts.commit == Duration::MAX;
    let before = plan.sb.clone();
    let (about, data, read_only, writes) =
        (plan.scheme.about, plan.data, plan.read_only, plan.writes);
    if writes && plan.leftovers {
        journal_area::wipe(&*dev, &plan.sb, &plan.args.log)?;
    }
    let config = Config {
        commit_interval: (opts.commit < Duration::MAX).then_some(opts.commit),
        memory: usize::try_from(opts.memory / 2).unwrap_or(usize::MAX),
        dirty_expire: opts.dirty_expire,
        max_batch_time: opts.max_batch_time,
        min_batch_time: opts.min_batch_time,
    };
    let journal_blocks = plan.args.log.iter().map(|e| u64::from(e.len)).sum();
    let opened = plan.scheme.open(plan.args)?;
    let recovery = opened.report.clone();
    let journal = Journal::open(opened, &config);
    if let Some(protection) = protection.as_ref().filter(|_| !is_alone) {
        protection.keep(Arc::downgrade(&journal));
    }
    let vol = assemble(media, opts, journal, journal_blocks, read_only)?;
    check_root(&vol)?;
    if writes {
        mark_in_use(&*dev, vol.journal.terms().mark)?;
        // A scheme that logs differences must know what they are applied to.
        vol.journal.reread(super_place(vol.geo.block).0);
        note_mount(&vol, &before, recovery.journal_errno)?;
    }
    let mut report = MountReport {
        scheme: about.name,
        data,
        survives: vol.dev.survives(),
        remaps: vol.journal.terms().remaps,
        recovery,
        orphans_deleted: 0,
        orphans_truncated: 0,
        read_only,
        warnings: plan.warnings,
    };
    if let Some(remap) = vol.dev.remap().filter(|_| report.remaps.is_some())
        && u32_as_usize(remap.granularity()) > vol.geo.block_size()
    {
        report.warnings.push(format!(
            "the volume has blocks of {} bytes and a remap by {} wants {}: most of what is logged \
                is copied home",
            vol.geo.block_size(),
            remap.means(),
            remap.granularity()
        ));
    }
    if writes {
        finish_orphans(&vol, &mut report)?;
    }
    if vol.sb.read().state.contains(State::ERROR) {
        vol.state.fetch_or(VolumeState::ERROR, Ordering::Relaxed);
        report
            .warnings
            .push("the volume has errors: run e2fsck".to_owned());
    }
    Ok((vol, report))
}

fn plan(media: &Media, opts: &MountOptions) -> Result<Plan> {
    let dev = &media.home;
    if dev.size() < stetfs_format::SUPERBLOCK_OFFSET + usize_as_u64(stetfs_format::SUPERBLOCK_SIZE)
    {
        return Err(MountError::NoRoom {
            device: dev.describe(),
            size: dev.size(),
        }
        .into());
    }
    let sb = superblock::load(&**dev)?;
    let mut warnings = Vec::new();
    let mut read_only = opts.read_only || dev.read_only();
    if dev.read_only() && !opts.read_only {
        warnings.push(format!(
            "{} cannot be written: mounted read-only",
            dev.describe()
        ));
    }
    let check = sb.check_features();
    if !check.can_mount() {
        return Err(MountError::Features {
            names: features::names(&check.refuse),
        }
        .into());
    }
    if !check.can_write() && !read_only {
        read_only = true;
        let names = features::names(&check.read_only);
        warnings.push(format!(
            "mounted read-only because of features that are not supported: {names}"
        ));
    }
    let volume = sb.volume_bytes();
    if volume > dev.size() {
        return Err(MountError::DeviceTooSmall {
            volume,
            device: dev.size(),
        }
        .into());
    }
    let needs_recovery = sb.feature_incompat.contains(FeatureIncompat::RECOVER);
    // As the kernel: what is clean is written to without a journal then.
    if opts.noload && !read_only {
        if needs_recovery {
            return Err(MountError::NoloadWritable.into());
        }
        warnings.push("noload: nothing is journaled; a crash will need e2fsck".to_owned());
    }
    let dirty = needs_recovery && !opts.noload;
    if dirty && dev.read_only() {
        return Err(MountError::NeedsRecovery {
            device: dev.describe(),
        }
        .into());
    }
    let has_journal = sb.feature_compat.contains(FeatureCompat::HAS_JOURNAL) && !opts.noload;
    let log = if has_journal {
        journal_extents(&**dev, &sb)?
    } else {
        Vec::new()
    };
    let leftovers = !dirty && journal_area::holds_leftovers(&**dev, &sb, &log)?;
    if leftovers {
        warnings.push(
            "the journal holds old transactions, but the volume is clean: they were not replayed"
                .to_owned(),
        );
    }
    // Nothing may be replayed then, and a journal that is not written cannot be told so.
    let has_journal = has_journal && !(leftovers && read_only);
    let log = if has_journal { log } else { Vec::new() };
    let has_private_log = sb.feature_incompat.contains(FeatureIncompat::PRIVATE_LOG);
    let owner = match (has_private_log, log.is_empty()) {
        (false, _) => None,
        (true, false) => journal_area::private_log_owner(&**dev, &sb, &log)?,
        // Also where it is not loaded, whose it is can be said.
        (true, true) => {
            journal_area::private_log_owner(&**dev, &sb, &journal_extents(&**dev, &sb)?)?
        }
    };
    let state = Found {
        owner: owner.as_deref(),
        dirty,
        has_journal,
        read_only,
    };
    let Choice { scheme, options } = choice::choose(opts, &sb, &state, &mut warnings)?;
    let (about, data) = (scheme.about, options.data);
    if opts.atomic == AtomicFiles::All && !about.atomic && !read_only {
        return Err(MountError::NotAtomic { scheme: about.name }.into());
    }
    if has_private_log {
        check_private_log(&**dev, owner, about, opts)?;
    }
    // The scheme itself looks at their values when it opens, before it writes.
    options.check_known(about)?;
    let args = OpenArgs {
        dev: dev.clone(),
        nvm: media.nvm.clone(),
        nvm_new: opts.nvm_new,
        block_size: sb.block_size(),
        blocks: sb.blocks_count,
        uuid: sb.uuid,
        has_64bit: sb.is_64bit,
        has_metadata_csum: sb.metadata_csum,
        log,
        // Half of the memory; the other half is the caches'.
        memory: usize::try_from(opts.memory / 2).unwrap_or(usize::MAX),
        has_private_log,
        inode_size: sb.inode_size(),
        writable: !read_only || dirty || has_private_log,
        options,
    };
    Ok(Plan {
        scheme,
        data,
        read_only,
        writes: args.writable,
        args,
        leftovers,
        sb,
        warnings,
    })
}

/// Whether the scheme is the one that has the newest content.
fn check_private_log(
    dev: &dyn BlockDev,
    owner: Option<String>,
    about: &About,
    opts: &MountOptions,
) -> Result<()> {
    let is_owner = owner.as_deref() == Some(about.name);
    if opts.noload || !is_owner {
        return Err(MountError::PrivateLog {
            scheme: owner.unwrap_or_else(|| "(unknown)".to_owned()),
        }
        .into());
    }
    if dev.read_only() {
        return Err(MountError::NeedsRecovery {
            device: dev.describe(),
        }
        .into());
    }
    Ok(())
}

/// Says on the device that the home blocks alone are no longer the whole truth.
fn mark_in_use(dev: &dyn BlockDev, with: Mark) -> Result<()> {
    superblock::store(dev, |sb| mark(sb, with))?;
    Ok(())
}

fn mark(sb: &mut Superblock, with: Mark) {
    match with {
        Mark::Unclean => sb.state -= State::VALID,
        Mark::NeedsRecovery => sb.feature_incompat |= FeatureIncompat::RECOVER,
        Mark::PrivateLog => sb.feature_incompat |= FeatureIncompat::PRIVATE_LOG,
    }
}

fn assemble(
    media: Media,
    opts: MountOptions,
    journal: Arc<Journal>,
    journal_blocks: u64,
    read_only: bool,
) -> Result<Arc<Volume>> {
    let Media { home: dev, nvm } = media;
    // Through the journal: it may hold a newer superblock than the device does.
    let (block, at) = super_place(superblock::load(&*dev)?.block);
    let raw = journal.read(block, Class::Superblock)?;
    let sb = superblock::decode(&*dev, &raw[at..])?;
    let geo = *sb;
    let mut alloc = crate::alloc::Alloc::new(&sb, journal.clone(), dev.clone())?;
    alloc.reserve_for(opts.reserved_for);
    if opts.discard {
        alloc.enable_discard();
    }
    // An inode in memory takes about 512 bytes; an eighth of the memory is theirs.
    let most = u64_as_usize((opts.memory / 8 / 512).min(1 << 20));
    let inodes = opts.inodes.map_or(most, |inodes| inodes.min(most));
    let committed = journal.committed();
    let dirs = crate::dir::dirs::Dirs::new(&sb);
    let vol = Arc::new(Volume {
        sb: RwLock::new(sb),
        geo,
        journal,
        dev,
        nvm,
        alloc,
        dirs,
        icache: InodeCache::new(inodes, committed),
        held: crate::held::Held::default(),
        clock: opts.clock.clone(),
        opts,
        orphans: crate::orphan::list::Orphans::default(),
        world: crate::world::World::default(),
        rename_lock: RwLock::new(()),
        shared_xattrs: crate::xattr::shared::SharedBlocks::default(),
        journal_blocks,
        state: AtomicU32::new(if read_only { VolumeState::READ_ONLY } else { 0 }),
        bytes_read: AtomicU64::new(0),
        bytes_written: AtomicU64::new(0),
        placement: OnceLock::new(),
        protection: OnceLock::new(),
    });
    if vol.on_error() == OnError::Continue {
        vol.journal.go_on();
    }
    let placement = Arc::new(Placement::new(&vol));
    let weak = Arc::downgrade(&placement);
    vol.journal.attach(weak);
    let _ = vol.placement.set(placement);
    Ok(vol)
}

fn check_root(vol: &Volume) -> Result<()> {
    match vol.iget(ROOT_INO) {
        Ok(root) if root.state.read().is_dir() => Ok(()),
        Ok(_) | Err(Error::Stale) => Err(MountError::Root.into()),
        Err(e) => Err(e),
    }
}

/// Counts the mount (`ext4_setup_super`), puts error marks back that recovery has overwritten with
/// older ones, and takes over the error that stopped the journal last time
/// (`ext4_clear_journal_err`).
fn note_mount(vol: &Volume, before: &Superblock, journal_errno: i32) -> Result<()> {
    let now = vol.clock.seconds();
    Scope::of(vol).with_any_handle(1, |h| {
        vol.update_super(h, |sb| {
            mark(sb, vol.journal.terms().mark);
            if sb.error_count < before.error_count || before.state.contains(State::ERROR) {
                keep_errors(sb, before);
            }
            if journal_errno != 0 {
                sb.state |= State::ERROR;
            }
            if !vol.is_read_only() {
                sb.mnt_count = sb.mnt_count.saturating_add(1);
                sb.mtime = now;
                sb.wtime = now;
            }
        })
    })
}

fn keep_errors(sb: &mut Superblock, before: &Superblock) {
    sb.state |= before.state & State::ERROR;
    sb.error_count = before.error_count;
    sb.first_error_time = before.first_error_time;
    sb.first_error_ino = before.first_error_ino;
    sb.first_error_block = before.first_error_block;
    sb.first_error_func = before.first_error_func;
    sb.first_error_line = before.first_error_line;
    sb.first_error_errcode = before.first_error_errcode;
    sb.last_error_time = before.last_error_time;
    sb.last_error_ino = before.last_error_ino;
    sb.last_error_block = before.last_error_block;
    sb.last_error_func = before.last_error_func;
    sb.last_error_line = before.last_error_line;
    sb.last_error_errcode = before.last_error_errcode;
}

/// Frees what was unlinked but open at the crash, and finishes truncates. As the kernel, not on a
/// volume with errors.
fn finish_orphans(vol: &Arc<Volume>, report: &mut MountReport) -> Result<()> {
    if vol.sb.read().state.contains(State::ERROR) {
        report
            .warnings
            .push("the volume has errors: orphan inodes were left alone".to_owned());
        return Ok(());
    }
    let read_only = vol
        .state
        .fetch_and(!VolumeState::READ_ONLY, Ordering::Relaxed)
        & VolumeState::READ_ONLY;
    vol.state.fetch_or(VolumeState::ORPHANS, Ordering::Relaxed);
    let done = crate::orphan::left::process(&Scope::of(vol));
    vol.state
        .fetch_and(!VolumeState::ORPHANS, Ordering::Relaxed);
    vol.state.fetch_or(read_only, Ordering::Relaxed);
    let done = done?;
    report.orphans_deleted = done.deleted;
    report.orphans_truncated = done.truncated;
    if let Some(damage) = done.damage {
        report.warnings.push(format!(
            "the list of orphan inodes names what is none ({damage}): that was taken off it"
        ));
        crate::damage::found(vol, &damage);
        report.read_only |= vol.is_read_only();
    }
    Ok(())
}

/// Takes the volume down: commits everything and leaves a clean image. Operations fail from here
/// on.
///
/// # Errors
/// An error of the journal or the device: the image may then need recovery, which loses nothing
/// that was confirmed.
pub(crate) fn unmount(vol: &Volume) -> Result<()> {
    vol.check_up()?;
    vol.state.fetch_or(VolumeState::CLOSING, Ordering::Relaxed);
    let writes = !matches!(vol.journal.stopped(), Some(JournalError::ReadOnly));
    // Operations that had begun may still change something, until the journal is closed.
    let closed = vol.journal.close_when(|| {
        vol.alloc.discard_freed();
        free_unlinked(&Scope::of(vol))
    });
    vol.state
        .fetch_or(VolumeState::SHUT_DOWN, Ordering::Relaxed);
    closed?;
    if !writes || vol.journal.terms().keeps {
        return release(vol);
    }
    let memory = vol.sb.read().clone();
    let read_only = vol.is_read_only();
    let counts = |sb: &mut Superblock| {
        sb.state |= State::VALID | (memory.state & State::ERROR);
        sb.free_blocks_count = vol.alloc.free_blocks_in_bitmaps();
        sb.free_inodes_count = u32::try_from(vol.alloc.free_inodes()).unwrap_or(u32::MAX);
        if !read_only {
            sb.wtime = vol.clock.seconds();
        }
    };
    if vol.dev.atomic_unit() < 512 {
        // Words of the superblock get there one by one: the mark goes when everything else is
        // there.
        superblock::store(&*vol.dev, counts)?;
    }
    superblock::store(&*vol.dev, |sb| {
        sb.feature_incompat -= FeatureIncompat::RECOVER | FeatureIncompat::PRIVATE_LOG;
        counts(sb);
    })?;
    release(vol)
}

/// Gives the multiple-mount protection back, and the device.
fn release(vol: &Volume) -> Result<()> {
    vol.protection.get().map_or(Ok(()), Protection::release)?;
    Ok(vol.dev.close()?)
}

/// Files that were unlinked while open and never closed: nobody can reach them any more.
fn free_unlinked(vol: &Scope<'_>) -> Result<()> {
    if vol.check_writable().is_err() {
        return Ok(());
    }
    for inode in vol.icache.all() {
        let _guard = inode.lock.write();
        let unlinked = {
            let st = inode.state.read();
            st.raw.links_count == 0 && !st.gone
        };
        if unlinked {
            inode.opens.store(0, Ordering::Relaxed);
            crate::evict::evict(vol, &inode)?;
        }
    }
    Ok(())
}

/// Stops the volume without unmounting it (FS_IOC_SHUTDOWN).
pub(crate) fn shutdown(vol: &Volume, how: Shutdown) -> Result<()> {
    let flushed = match how {
        Shutdown::Full if !vol.is_read_only() => vol.journal.sync(),
        Shutdown::LogFlush if !vol.is_read_only() => vol.journal.commit_running(),
        _ => Ok(()),
    };
    vol.state
        .fetch_or(VolumeState::SHUT_DOWN, Ordering::Relaxed);
    vol.journal.shutdown();
    Ok(flushed?)
}
