//! The differences between the checker and e2fsck, and their reasons.

use std::collections::BTreeSet;
use std::sync::Mutex;

use stetfs_check::Fault;

use crate::judge::Judgement;

/// A difference: our variant or a part of e2fsck's text; a case in which it occurs, as its volume,
/// a part of its text and the end of it; and the reason.
type Row = (&'static str, &'static str, &'static str);

/// Our first finding, where `e2fsck -fn` accepts the volume without a word.
#[rustfmt::skip]
const WE_FIND_MORE: &[Row] = &[
    ("BlockBitmapChecksum", "ext4-1k-meta-bg|block bitmap 16: first|checksum left", "as below: the \
        checksum is that of what e2fsck makes of the bitmap"),
    ("BlocksNotMarked", "ext4-1k-uninit|block bitmap 1: middle|-> fe", "metadata of an \
        uninitialised group in the bitmap of another: e2fsck marks them itself first"),
    ("EntryType", "ext4-1k|directory block 0 of inode 2 (Directory): entry 0 file_type|-> 00", "an \
        entry without a type on a volume that has types: e2fsck sets it silently, the kernel \
        writes none"),
    ("ExtentDepth", "ext4-1k|(Regular): eh_depth 0000|-> 8000", "the depth of a node below the \
        root: the kernel refuses the node"),
    ("ExtentEnd", "ext4-1k|(Regular): entry 52 ee_block|-> ffffffff", "an extent that ends beyond \
        2^32: the kernel refuses it"),
    ("ExtentEntries", "ext4-1k|(Regular): eh_depth 0000|-> 0001", "an index node without entries: \
        the kernel refuses it"),
    ("Flag", "ext4-1k|inode 3 (no): i_flags|-> 00001000", "reserved inodes: e2fsck looks at few of \
        their flags"),
    ("HtreeMaxHash", "ext4-1k|hash tree block 0 of |-> 00000001", "the upper bound of an interior \
        node: lookups miss what lies above it"),
    ("IndirectBlock", "ext4-1k-groups|pointers 13.1 of inode 7 (Regular): pointer 0 |-> \
        00000001", "a pointer of the resize inode to the superblock: e2fsck counts it and looks no \
        further"),
    ("InodeExtraSize", "ext4-1k|inode 3 (no): i_extra_isize|-> 0001", "reserved inodes: e2fsck \
        does not look, the kernel does when it reads them"),
    ("InodeFileAcl", "ext4-1k|inode 3 (no): i_file_acl_lo|-> 80000000", "reserved inodes: e2fsck \
        does not look, the kernel does when it reads them"),
    ("InodeMode", "ext4-1k|inode 3 (no): i_mode|-> ffff", "reserved inodes: e2fsck does not look"),
    ("InodeSize", "ext4-1k-orphan-file|inode 2 (Directory): i_size_high|-> 80000000", "2^63 and \
        more: e2fsck looks at the lower bits where there are no blocks; the kernel refuses it"),
    ("JournalFirst", "ext4-1k|journal: s_first|-> 01000010", "e2fsck looks at it only to recover; \
        the kernel refuses the journal"),
    ("JournalInode", "ext4-1k|inode 8 (Regular): i_size_high|-> 00000001", "e2fsck takes the lower \
        half of its size, and for one without links the copy in the superblock"),
    ("NotClean", "ext4-1k|superblock: s_state|-> 0000", "e2fsck -f checks whatever the state says; \
        here it is what an unmount must leave"),
    ("OrphanList", "ext4-1k|superblock: s_last_orphan|-> 00000010", "e2fsck -n does not look at \
        the list; the inodes on it may be right by themselves"),
    ("QuotaInode", "ext4-1k|superblock: s_usr_quota_inum|-> 00000004", "inodes of quota without \
        the feature: e2fsck takes them out of the tree when there are such"),
    ("ResizeInode", "ext4-1k-groups|pointers 13.0 of inode 7 (Regular): pointer 255 |-> \
        00000100", "e2fsck compares a fourth of the reserved blocks; the kernel all of them, \
        before it grows a volume"),
    ("Size", "ext4-1k-orphan-file|inode 2 (Directory): i_size_high|-> 00000400", "directories of \
        2^32 blocks and more: e2fsck looks at the lower bits"),
    ("Unsupported", "ext4-1k|superblock: s_creator_os|-> 00000001", "what we cannot judge we say: \
        inodes of the Hurd, a list of bad blocks"),
    ("XattrName", "ext4-1k|(Regular): entry 2 name|-> 00", "no name, or a zero in it: the kernel \
        refuses the attributes"),
];

/// Complaints of e2fsck after which it exits as if the volume were clean. The checker finds these
/// too.
#[rustfmt::skip]
const COMPLAINTS: &[Row] = &[
    ("Free blocks count wrong (", "ext4-1k|superblock: s_free_blocks_count_lo|-> 00000001", "the \
        kernel does not keep it while mounted; an unmount does"),
    ("Free inodes count wrong (", "ext4-1k|superblock: s_free_inodes_count|-> 00000001", "the \
        kernel does not keep it while mounted; an unmount does"),
    ("marked uninitialized without feature set", "ext4-1k-bare|descriptor 0: \
        bg_itable_unused_lo|-> 0001", "before e2fsck counts errors"),
    ("group descriptor checksums are invalid", "ext4-4k|superblock: s_feature_incompat|-> \
        00000242", "before e2fsck counts errors"),
    ("supersedes uninit_bg", "ext4-1k|superblock: s_feature_ro_compat|-> 0000047b", "before e2fsck \
        counts errors"),
    ("metadata_csum_seed is not necessary without", "ext3-1k|superblock: s_feature_incompat|-> \
        00002002", "before e2fsck counts errors"),
    ("has invalid unused inodes count", "ext4-1k-groups|descriptor 3: bg_itable_unused_lo|-> \
        0201", "before e2fsck counts errors"),
    ("extra isize in superblock", "ext4-1k|superblock: s_min_extra_isize|-> 0001", "before e2fsck \
        counts errors"),
    ("does not have resize_inode enabled, but", "ext4-1k|superblock: s_feature_compat|-> \
        0000002c", "before e2fsck counts errors"),
    ("Resize_inode not enabled, but", "ext4-1k-bare|inode 7 (no): i_block[1]|-> 80000000", "before \
        e2fsck counts errors"),
    ("Error writing block", "ext4-1k|journal: s_errno|-> 00000001", "an aborted journal, whose \
        error e2fsck -n tries to clear"),
    ("Resize inode not valid", "ext4-1k|inode 7 (Regular): i_links_count|-> 0000", "before e2fsck \
        counts errors"),
    ("needs_recovery flag is clear, but", "ext4-1k|journal: s_start|-> 00000001", "before e2fsck \
        counts errors"),
    ("has_journal flag is clear, but", "ext4-1k|superblock: s_feature_compat|-> 00000038", "before \
        e2fsck counts errors"),
    ("quota inode", "ext4-1k|superblock: s_usr_quota_inum|-> 00000001", "before e2fsck counts \
        errors"),
    ("skipping journal recovery", "ext4-1k|superblock: s_feature_incompat|-> 000002c6", "what is \
        in the journal is not in its place yet"),
    ("Programming error?  block", "ext4-1k|inode 1 (no): i_block[0]|-> 00000010", "a list of bad \
        blocks, which we do not support"),
    ("Special (device/socket/fifo/symlink) file", "ext4-1k|(Fifo): i_flags|-> 00000010", "a flag \
        that cannot be set; e2fsck lets it pass"),
];

/// Errors or complaints of e2fsck that the checker does not share.
#[rustfmt::skip]
const E2FSCK_FINDS_MORE: &[Row] = &[
    ("is in the future", "ext4-1k|superblock: s_wtime|-> ffffffff", "a check must not depend on \
        the time of day"),
    ("are likely pre-1970", "ext4-1k|(Regular): i_mtime_extra|-> ffffffff", "times after 2310 are \
        legal"),
];

fn rows() -> impl Iterator<Item = &'static Row> {
    WE_FIND_MORE
        .iter()
        .chain(COMPLAINTS)
        .chain(E2FSCK_FINDS_MORE)
}

/// The table, with the rows that have occurred.
pub struct Table {
    used: Mutex<BTreeSet<&'static str>>,
}

/// Returns the name of a fault's variant; for a record, that of the decoder's variant.
pub fn variant(fault: &Fault) -> String {
    let text = format!("{fault:?}");
    let text = text.strip_prefix("Record(").unwrap_or(&text);
    let end = text
        .find(|c: char| !c.is_alphanumeric())
        .unwrap_or(text.len());
    text[..end].to_owned()
}

impl Table {
    pub fn new() -> Self {
        let used = Mutex::default();
        Self { used }
    }

    fn is_listed(&self, rows: &[Row], text: &str) -> bool {
        let row = rows.iter().find(|(row, ..)| text.contains(row));
        let mut used = self.used.lock().expect("no panic");
        used.extend(row.map(|(row, ..)| *row));
        row.is_some()
    }

    /// Returns what is wrong with a pair of judgements; `None` if they agree, or differ as the
    /// table says.
    pub fn difference(&self, judgement: &Judgement) -> Option<String> {
        let Judgement { ours, e2fsck } = judgement;
        let is_error = e2fsck.status >= 4;
        let is_silent = e2fsck.complaints.is_empty();
        let complaints = e2fsck.complaints.join(" / ");
        match ours.findings.first() {
            Some(_) if is_error => None,
            None if !is_error && is_silent => None,
            None => {
                let is_listed = self.is_listed(E2FSCK_FINDS_MORE, &complaints);
                (!is_listed).then(|| format!("e2fsck exits with {}: {complaints}", e2fsck.status))
            }
            Some(first) if is_silent => {
                // Only the first finding counts: later ones are often its consequences.
                let variant = variant(&first.fault);
                let is_listed = self.is_listed(WE_FIND_MORE, &variant);
                (!is_listed).then(|| format!("e2fsck finds nothing, we: {variant} ({first})"))
            }
            Some(first) => {
                let is_listed = self.is_listed(COMPLAINTS, &complaints);
                (!is_listed).then(|| format!("e2fsck complains: {complaints} and we find: {first}"))
            }
        }
    }

    /// Whether a row of the table needs this case.
    pub fn needs(&self, volume: &str, what: &str) -> bool {
        rows().any(|(_, case, _)| {
            let mut parts = case.split('|');
            parts.next() == Some(volume)
                && parts.next().is_some_and(|part| what.contains(part))
                && parts.next().is_some_and(|end| what.ends_with(end))
        })
    }

    /// Checks that every row has occurred: an unused row means that the two agree there.
    pub fn assert_used(&self) {
        let used = self.used.lock().expect("no panic");
        let unused: Vec<&Row> = rows().filter(|(row, ..)| !used.contains(row)).collect();
        assert!(
            unused.is_empty(),
            "differences that did not occur: {unused:?}"
        );
    }
}
