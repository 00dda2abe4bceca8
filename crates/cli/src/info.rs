//! `stetfs info`: what a volume is and in which state, from the superblocks of the volume and of
//! its journal.

use std::path::Path;

use serde::Serialize;
use stetfs_format::features::{self, Feature};
use stetfs_format::width::must_fit_u32;
use stetfs_format::{FeatureCompat, State, Superblock};
use stetfs_fuse::mountinfo::MountEntry;

use crate::answer;
use crate::args::Info;
use crate::called::{kind, named, text, uuid};
use crate::clock::utc;
use crate::disk::Disk;
use crate::failure::{Result, TRUNCATED};
use crate::journal::area::{JournalArea, JournalInfo};
use crate::mounts;
use crate::output;
use crate::size::Size;

/// What `--json` prints. Sizes are bytes, times seconds since 1970.
#[derive(Debug, Serialize)]
pub(crate) struct VolumeInfo {
    pub(crate) image: String,
    /// `ext2`, `ext3` or `ext4`, by the features.
    pub(crate) kind: &'static str,
    pub(crate) label: String,
    /// Its default mount options, except those that are flags.
    pub(crate) mount_options: String,
    pub(crate) uuid: String,
    pub(crate) size: u64,
    /// Bytes at its end that the file or device lacks.
    pub(crate) missing: u64,
    pub(crate) block_size: u32,
    pub(crate) blocks: u64,
    pub(crate) blocks_free: u64,
    pub(crate) blocks_reserved: u64,
    pub(crate) groups: u32,
    pub(crate) inodes: u32,
    pub(crate) inodes_free: u32,
    pub(crate) inode_size: u16,
    pub(crate) features: Vec<String>,
    /// The state in a word: `mounted`, `clean`, `needs recovery`, `errors`,
    /// `not cleanly unmounted`.
    pub(crate) state: &'static str,
    pub(crate) needs_recovery: bool,
    /// The first inode of the list of orphans (deleted while open), or 0.
    pub(crate) first_orphan: u32,
    pub(crate) mounted: Option<MountInfo>,
    pub(crate) errors: Option<ErrorInfo>,
    /// Features that keep stetfs from writing, or from mounting at all.
    pub(crate) unsupported: Unsupported,
    pub(crate) made: u64,
    pub(crate) last_mounted: u64,
    pub(crate) last_mounted_on: String,
    pub(crate) last_written: u64,
    pub(crate) last_checked: u64,
    pub(crate) mounts_since_check: u16,
    pub(crate) kib_written: u64,
    pub(crate) journal: Option<JournalInfo>,
}

#[derive(Debug, Serialize)]
pub(crate) struct MountInfo {
    pub(crate) dir: String,
    pub(crate) kind: String,
    /// The medium, as the server describes it; for memory, also what it survives.
    pub(crate) medium: Option<String>,
    /// How committed blocks get home without being copied, as the server says; None if they do not.
    pub(crate) remaps: Option<String>,
    /// The files of which one write is one transaction or nothing, and up to how many bytes, as the
    /// server says.
    pub(crate) atomic_files: Option<String>,
    pub(crate) marked_write_max: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ErrorInfo {
    pub(crate) count: u32,
    pub(crate) first_time: u64,
    pub(crate) last_time: u64,
    pub(crate) last_function: String,
    pub(crate) last_inode: u32,
    pub(crate) last_block: u64,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Unsupported {
    pub(crate) for_mounting: Vec<String>,
    pub(crate) for_writing: Vec<String>,
}

impl VolumeInfo {
    /// Reads a file or block device, mounted or not, without a lock.
    pub(crate) fn read(image: &Path) -> Result<Self> {
        let disk = Disk::open(image)?;
        let mounted = mounts::mount_of(image)?;
        Ok(Self::new(image, &disk, mounted))
    }

    fn new(image: &Path, disk: &Disk, mounted: Option<MountEntry>) -> Self {
        let sb = &disk.superblock;
        let check = sb.check_features();
        let names = |list: &[Feature]| list.iter().map(Feature::to_string).collect();
        let needs_recovery = disk.needs_recovery();
        Self {
            image: image.display().to_string(),
            kind: kind(sb),
            label: text(&sb.volume_name),
            mount_options: text(&sb.mount_opts),
            uuid: uuid(&sb.uuid),
            size: sb.volume_bytes(),
            missing: disk.missing(),
            block_size: must_fit_u32(sb.block_size()),
            blocks: sb.blocks_count,
            blocks_free: sb.free_blocks_count,
            blocks_reserved: sb.r_blocks_count,
            groups: sb.groups_count(),
            inodes: sb.inodes_count,
            inodes_free: sb.free_inodes_count,
            inode_size: sb.inode_size,
            features: features::all(sb.feature_compat, sb.feature_incompat, sb.feature_ro_compat)
                .map(|f| f.to_string())
                .collect(),
            state: state(sb, mounted.is_some(), needs_recovery),
            needs_recovery,
            first_orphan: sb.last_orphan,
            mounted: mounted.map(|m| {
                let said = server_says(&m.dir);
                let text = |what| said.pointer(what)?.as_str().map(str::to_owned);
                MountInfo {
                    medium: text("/medium"),
                    remaps: text("/remaps"),
                    atomic_files: text("/atomic_files"),
                    marked_write_max: said
                        .pointer("/server/marked_write_max")
                        .and_then(serde_json::Value::as_u64),
                    dir: m.dir.display().to_string(),
                    kind: m.kind,
                }
            }),
            errors: (sb.error_count > 0).then(|| errors(sb)),
            unsupported: Unsupported {
                for_mounting: names(&check.refuse),
                for_writing: names(&check.read_only),
            },
            made: sb.mkfs_time,
            last_mounted: sb.mtime,
            last_mounted_on: text(&sb.last_mounted),
            last_written: sb.wtime,
            last_checked: sb.lastcheck,
            mounts_since_check: sb.mnt_count,
            kib_written: sb.kbytes_written,
            journal: journal(disk),
        }
    }

    /// Returns the volume's name in words: `the ext4 volume "backup" (UUID)`
    pub(crate) fn name(&self) -> String {
        named(self.kind, &self.label, &self.uuid)
    }

    /// Describes in one line what was made.
    pub(crate) fn summary(&self) -> String {
        let journal = match &self.journal {
            Some(JournalInfo::Internal { size, .. }) => format!("a journal of {}", Size(*size)),
            Some(JournalInfo::External { .. }) => "an external journal".to_owned(),
            Some(JournalInfo::Unreadable { unreadable }) => {
                format!("a journal that cannot be read ({unreadable})")
            }
            None => "no journal".to_owned(),
        };
        let label = if self.label.is_empty() {
            String::new()
        } else {
            format!(" \"{}\"", self.label)
        };
        format!(
            "{}{label}, {}, {} blocks of {}, {} inodes, {journal}, UUID {}",
            self.kind,
            Size(self.size),
            self.blocks,
            Size(self.block_size.into()),
            self.inodes,
            self.uuid
        )
    }
}

pub(crate) fn run(args: &Info) -> Result<()> {
    let info = VolumeInfo::read(&args.image)?;
    if args.json {
        return output::json(&info);
    }
    rows(&info)
        .into_iter()
        .try_for_each(|(name, value)| output::line(format_args!("{name:<16}{value}")))
}

/// A name, and the words beside it.
type Row = (&'static str, String);

fn rows(v: &VolumeInfo) -> Vec<Row> {
    let parts = [
        size_rows(v),
        mount_rows(v),
        journal_rows(v),
        feature_rows(v),
        history_rows(v),
    ];
    parts.concat()
}

/// Name, state and sizes.
fn size_rows(v: &VolumeInfo) -> Vec<Row> {
    let mut rows = vec![
        ("volume", v.name()),
        ("state", state_in_words(v)),
        (
            "size",
            format!(
                "{}: {} blocks of {}, groups: {}",
                Size(v.size),
                v.blocks,
                Size(v.block_size.into()),
                v.groups
            ),
        ),
        (
            "free",
            format!(
                "{} ({} reserved for root)",
                blocks(v, v.blocks_free),
                blocks(v, v.blocks_reserved)
            ),
        ),
        (
            "inodes",
            format!(
                "{} of {} bytes, {} free",
                v.inodes, v.inode_size, v.inodes_free
            ),
        ),
    ];
    if v.missing > 0 {
        let missing = format!("{} are missing at its end: {TRUNCATED}", Size(v.missing));
        rows.push(("truncated", missing));
    }
    rows
}

/// What only the server of a mounted volume knows.
fn mount_rows(v: &VolumeInfo) -> Vec<Row> {
    let mut rows = Vec::new();
    if let Some(medium) = v.mounted.as_ref().and_then(|m| m.medium.as_ref()) {
        rows.push(("medium", medium.clone()));
    }
    if let Some(means) = v.mounted.as_ref().and_then(|m| m.remaps.as_ref()) {
        rows.push((
            "remaps",
            format!("by {means}: what was logged is not copied home"),
        ));
    }
    if let Some(writes) = v.mounted.as_ref().and_then(whole_writes) {
        rows.push(("one write", writes));
    }
    rows
}

/// Default mount options and features.
fn feature_rows(v: &VolumeInfo) -> Vec<Row> {
    let mut rows = Vec::new();
    if !v.mount_options.is_empty() {
        rows.push(("mounted with", v.mount_options.clone()));
    }
    rows.push(("features", v.features.join(" ")));
    if !v.unsupported.for_mounting.is_empty() {
        rows.push((
            "cannot mount",
            format!(
                "these features are not supported: {}",
                v.unsupported.for_mounting.join(" ")
            ),
        ));
    } else if !v.unsupported.for_writing.is_empty() {
        rows.push((
            "read-only",
            format!(
                "these features cannot be written: {}",
                v.unsupported.for_writing.join(" ")
            ),
        ));
    }
    rows
}

/// Errors and times.
fn history_rows(v: &VolumeInfo) -> Vec<Row> {
    let mut rows = Vec::new();
    if let Some(e) = &v.errors {
        let place = format!(
            "inode {}, block {}, in {}",
            e.last_inode, e.last_block, e.last_function
        );
        rows.push((
            "errors",
            format!(
                "{} since {}, last {}: {place}",
                e.count,
                time(e.first_time),
                time(e.last_time)
            ),
        ));
    }
    rows.push(("made", time(v.made)));
    let on = if v.last_mounted_on.is_empty() {
        String::new()
    } else {
        format!(" on {}", v.last_mounted_on)
    };
    rows.push(("last mounted", format!("{}{on}", time(v.last_mounted))));
    rows.push((
        "last written",
        format!(
            "{}, {} in its life",
            time(v.last_written),
            Size(v.kib_written.saturating_mul(1024))
        ),
    ));
    rows.push((
        "last checked",
        format!(
            "{}, {} mounts ago",
            time(v.last_checked),
            v.mounts_since_check
        ),
    ));
    rows
}

fn journal_rows(v: &VolumeInfo) -> Vec<Row> {
    match &v.journal {
        None => vec![(
            "journal",
            "none: it can be mounted with -o ro, or without a journal with -o scheme=null; tune2fs \
                -j makes one".to_owned(),
        )],
        Some(JournalInfo::Unreadable { unreadable }) => {
            vec![("journal", format!("cannot be read: {unreadable}"))]
        }
        Some(JournalInfo::External { external_uuid }) => {
            vec![(
                "journal",
                format!("on another device, which has the UUID {external_uuid}"),
            )]
        }
        Some(JournalInfo::Internal {
            inode,
            size,
            blocks,
            scheme,
            is_private,
            features,
            sequence,
            start,
            error,
        }) => {
            let features = feature_words(features);
            let mut rows = vec![
                (
                    "journal",
                    format!(
                        "{}, {blocks} blocks in inode {inode}, {features}",
                        Size(*size)
                    ),
                ),
                ("scheme", scheme.clone()),
            ];
            rows.push((
                "log",
                match start {
                    _ if *is_private => format!(
                        "open: only scheme {scheme} can read what is in \
                        it"
                    ),
                    0 => format!("empty, the next transaction is {sequence}"),
                    _ => format!(
                        "begins at journal block {start} with transaction {sequence}; see \
                        `stetfs journal`"
                    ),
                },
            ));
            if *error != 0 {
                rows.push((
                    "journal error",
                    format!("{error}: the journal was stopped; run `stetfs fsck`"),
                ));
            }
            rows
        }
    }
}

/// A journal's features.
pub(crate) fn feature_words(features: &[&str]) -> String {
    if features.is_empty() {
        "no features".to_owned()
    } else {
        features.join(" ")
    }
}

fn state_in_words(v: &VolumeInfo) -> String {
    match (&v.mounted, v.state) {
        (Some(m), _) => format!("mounted on {} ({})", m.dir, m.kind),
        (None, "needs recovery") => "needs recovery: the next mount replays the journal".to_owned(),
        (None, "errors") => "errors were found; run `stetfs fsck`".to_owned(),
        (None, other) => other.to_owned(),
    }
}

fn blocks(v: &VolumeInfo, n: u64) -> Size {
    Size(n.saturating_mul(v.block_size.into()))
}

fn time(seconds: u64) -> String {
    match seconds {
        0 => "never".to_owned(),
        _ => i64::try_from(seconds)
            .map_or_else(|_| seconds.to_string(), |s| format!("{} UTC", utc(s))),
    }
}

fn state(sb: &Superblock, is_mounted: bool, needs_recovery: bool) -> &'static str {
    if is_mounted {
        "mounted"
    } else if sb.state.contains(State::ERROR) {
        "errors"
    } else if needs_recovery {
        "needs recovery"
    } else if sb.state.contains(State::VALID) {
        "clean"
    } else {
        "not cleanly unmounted"
    }
}

fn errors(sb: &Superblock) -> ErrorInfo {
    ErrorInfo {
        count: sb.error_count,
        first_time: sb.first_error_time,
        last_time: sb.last_error_time,
        last_function: text(&sb.last_error_func),
        last_inode: sb.last_error_ino,
        last_block: sb.last_error_block,
    }
}

fn journal(disk: &Disk) -> Option<JournalInfo> {
    let sb = &disk.superblock;
    if !sb.feature_compat.contains(FeatureCompat::HAS_JOURNAL) {
        return None;
    }
    if sb.journal_inum == 0 {
        return Some(JournalInfo::External {
            external_uuid: uuid(&sb.journal_uuid),
        });
    }
    Some(match JournalArea::open(disk) {
        Err(e) => JournalInfo::Unreadable {
            unreadable: e.to_string(),
        },
        Ok(area) => area.info(sb.journal_inum),
    })
}

/// Returns what the server of a mounted volume says of itself. Returns nothing if it does not
/// answer, as for a kernel mount.
fn server_says(dir: &Path) -> serde_json::Value {
    let stats = answer::query_stats(dir).ok();
    let stats = stats.and_then(|stats| serde_json::from_str(&stats).ok());
    stats.unwrap_or_default()
}

/// Says which writes are one transaction; None if none is.
fn whole_writes(mounted: &MountInfo) -> Option<String> {
    let files = match mounted.atomic_files.as_deref()? {
        "all" => "any file",
        "marked" => "a file that chattr +j has marked",
        _ => return None,
    };
    let max = mounted.marked_write_max.filter(|max| *max > 0)?;
    let max = Size(max);
    Some(format!(
        "to {files}: whole or nothing of it, up to {max} (docs/ATOMIC.md)"
    ))
}
