//! Names of volumes, as sentences use them.

use stetfs_format::{FeatureCompat, FeatureIncompat, Superblock};

use crate::shown::shown;

/// Returns a volume's name, from its superblock.
pub(crate) fn name_of(sb: &Superblock) -> String {
    named(kind(sb), &text(&sb.volume_name), &uuid(&sb.uuid))
}

pub(crate) fn named(kind: &str, label: &str, uuid: &str) -> String {
    let label = match label {
        "" => String::new(),
        label => format!(" \"{label}\""),
    };
    format!("an {kind} volume{label} ({uuid})")
}

pub(crate) fn kind(sb: &Superblock) -> &'static str {
    // The features that only ext4 has, as blkid tells the three apart.
    let ext3 = FeatureIncompat::FILETYPE | FeatureIncompat::RECOVER | FeatureIncompat::META_BG;
    if !ext3.contains(sb.feature_incompat) || sb.feature_ro_compat.bits() & !0x7 != 0 {
        "ext4"
    } else if sb.feature_compat.contains(FeatureCompat::HAS_JOURNAL) {
        "ext3"
    } else {
        "ext2"
    }
}

/// Returns the text in a fixed field, up to its first NUL, as names are shown.
pub(crate) fn text(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    shown(&field[..end])
}

/// Returns the usual form of a UUID.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let mut out = String::with_capacity(36);
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out.push_str(&format!("{byte:02x}"));
    }
    out
}
