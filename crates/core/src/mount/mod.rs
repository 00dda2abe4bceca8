//! Bringing a volume up and down.
//!
//! Order at mount. A power cut is harmless at each step:
//! 1. Superblock, features, size, journal area: these are only read.
//! 2. The journal opens. Its scheme first refuses unsuitable options and media, and only then
//!    recovers, if need be. Recovery may have changed the superblock, so it is read again; then the
//!    allocator's records and the root are read. A volume that cannot be mounted is refused before
//!    it is marked.
//! 3. "Needs recovery" is set in the superblock and flushed, so that from the first commit on
//!    nobody takes the home blocks for the newest. Without a journal, the superblock stops saying
//!    "valid" instead. Then a handle notes the mount, so that each later copy of the superblock
//!    says the same. Error marks newer than the logged copy are put back.
//!
//! At unmount, everything is committed, and the journal brings it home and marks itself empty. Only
//! then the superblock says "clean" (counts, `VALID_FS`, no "needs recovery"). Last, the device is
//! closed.
//!
//! A read-only mount of a dirty volume recovers it when the device can be written, as the kernel
//! does.

pub(crate) mod alone;
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
use crate::in_use;
use crate::options::{AtomicFiles, MountOptions, OnError};
use crate::place::Placement;
use crate::scope::Scope;
use crate::types::Shutdown;
use crate::volume::{ROOT_INO, Volume, VolumeState, super_place};

/// What a mount found and did.
#[derive(Debug, Clone, Serialize)]
pub struct MountReport {
    /// The journaling scheme.
    pub scheme: &'static str,
    /// Its mode; `None` if it has no modes.
    pub data: Option<DataMode>,
    /// Which failures durable content survives; `None` unless the volume is in memory or on a NAND
    /// part in a file.
    pub survives: Option<Survives>,
    /// How the medium brings committed blocks home without a copy; `None` when they are copied.
    pub remaps: Option<&'static str>,
    /// What recovery did.
    pub recovery: RecoveryReport,
    /// How many unlinked inodes were freed.
    pub orphans_deleted: u32,
    /// How many truncates were finished.
    pub orphans_truncated: u32,
    /// Whether the mount is read-only, asked for or not.
    pub read_only: bool,
    /// Whether the volume tells other machines that it is in use (the feature `mmp`).
    pub is_protected: bool,
    /// Warnings for the user, one sentence each.
    pub warnings: Vec<String>,
}

/// The decisions made before anything is written.
struct Plan {
    sb: Superblock,
    scheme: &'static Registration,
    data: Option<DataMode>,
    args: OpenArgs,
    /// The log must be marked empty before the volume is marked in use.
    leftovers: bool,
    /// Operations may change nothing.
    read_only: bool,
    /// The journal and the superblock may be written, as they are by a read-only mount that must
    /// recover.
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
    // As in the kernel, a read-only mount does not ask, even if it recovers.
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

/// Carries out the plan.
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
    in_use::restore(
        &Scope::of(&vol),
        vol.opts.in_use.as_deref().unwrap_or_default(),
    )?;
    if writes {
        mark_in_use(&*dev, vol.journal.terms().mark)?;
        // A scheme that logs differences must know what they are differences to.
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
        is_protected: protection.is_some(),
        warnings: plan.warnings,
    };
    report.warnings.extend(too_small_to_remap(&vol));
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

/// Returns the warning for a volume whose scheme remaps, but whose blocks are too small for it.
fn too_small_to_remap(vol: &Volume) -> Option<String> {
    vol.journal.terms().remaps?;
    let (remap, size) = (vol.dev.remap()?, vol.geo.block_size());
    (u32_as_usize(remap.granularity()) > size).then(|| {
        format!(
            "the volume has blocks of {size} bytes and a remap by {} wants {}: most of what is \
                logged is copied home",
            remap.means(),
            remap.granularity()
        )
    })
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
    // As in the kernel, a clean volume is then written to without a journal.
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
    // A read-only mount cannot empty the log, and nothing of it may be replayed: mount without it.
    let has_journal = has_journal && !(leftovers && read_only);
    let log = if has_journal { log } else { Vec::new() };
    let has_private_log = sb.feature_incompat.contains(FeatureIncompat::PRIVATE_LOG);
    let owner = match (has_private_log, log.is_empty()) {
        (false, _) => None,
        (true, false) => journal_area::private_log_owner(&**dev, &sb, &log)?,
        // The log is not loaded, but an error must name its scheme.
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
    // The scheme checks their values when it opens, before it writes.
    options.check_known(about)?;
    let args = OpenArgs {
        dev: dev.clone(),
        nvm: media.nvm.clone(),
        nvm_new: opts.nvm_new,
        block_size: sb.block,
        blocks: sb.blocks_count,
        uuid: sb.uuid,
        has_64bit: sb.is_64bit,
        has_metadata_csum: sb.metadata_csum,
        log,
        // Half of the memory. The other half is for the caches.
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

/// Fails unless the scheme of the mount is the one that has the newest content.
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

/// Marks on the device that the newest content is no longer in the home blocks alone.
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
    // Read through the journal, which may hold a newer superblock than the device.
    let (block, at) = super_place(superblock::load(&*dev)?.block);
    let raw = journal.read(block, Class::Superblock)?;
    let sb = superblock::decode(&*dev, &raw[at..])?;
    let geo = *sb;
    let mut alloc = crate::alloc::Alloc::new(&sb, journal.clone(), dev.clone())?;
    alloc.reserve_for(opts.reserved_for);
    if opts.discard {
        alloc.enable_discard();
    }
    // An inode in memory takes about 512 bytes. Inodes may take an eighth of the memory.
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
        redo: crate::redo::during::Redo::default(),
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

/// Counts the mount (`ext4_setup_super`). Puts back error marks that recovery replaced by older
/// ones. Takes over the error that stopped the journal last time (`ext4_clear_journal_err`).
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

/// Frees files that were unlinked but open at the crash, and finishes truncates. As in the kernel,
/// not on a volume with errors.
fn finish_orphans(vol: &Arc<Volume>, report: &mut MountReport) -> Result<()> {
    if vol.sb.read().state.contains(State::ERROR) {
        report
            .warnings
            .push("the volume has errors: orphan inodes were left alone".to_owned());
        return Ok(());
    }
    // As in the kernel: to free an inode is to write.
    if !vol.sb.read().check_features().can_write() {
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
/// An error of the journal or the device. The image may then need recovery; nothing confirmed is
/// lost.
pub(crate) fn unmount(vol: &Volume) -> Result<()> {
    vol.check_up()?;
    vol.state.fetch_or(VolumeState::CLOSING, Ordering::Relaxed);
    let writes = !matches!(vol.journal.stopped(), Some(JournalError::ReadOnly));
    // Operations that have begun may still change something until the journal is closed.
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
    let can_write = memory.check_features().can_write();
    let counts = |sb: &mut Superblock| {
        sb.state |= State::VALID | (memory.state & State::ERROR);
        if !can_write {
            return;
        }
        sb.free_blocks_count = vol.alloc.free_blocks_in_bitmaps();
        sb.free_inodes_count = u32::try_from(vol.alloc.free_inodes()).unwrap_or(u32::MAX);
        if !read_only {
            sb.wtime = vol.clock.seconds();
        }
    };
    if vol.dev.atomic_unit() < 512 {
        // Words of the superblock arrive one by one, so the mark is removed after everything else
        // is durable.
        superblock::store(&*vol.dev, counts)?;
    }
    superblock::store(&*vol.dev, |sb| {
        sb.feature_incompat -= FeatureIncompat::RECOVER | FeatureIncompat::PRIVATE_LOG;
        counts(sb);
    })?;
    release(vol)
}

/// Gives back the multiple-mount protection and the device.
fn release(vol: &Volume) -> Result<()> {
    vol.protection.get().map_or(Ok(()), Protection::release)?;
    Ok(vol.dev.close()?)
}

/// Frees files that were unlinked while open and never closed: nobody can reach them any more.
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
