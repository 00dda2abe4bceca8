//! ACLs as archives have them: as text, a line for each entry.
//!
//! Sources: acl(5), "ACL Text Forms"; star(4) and bsdtar's tar(5) for `SCHILY.acl.access` and
//! `SCHILY.acl.default`, where a number may stand behind a name; linux/posix_acl_xattr.h for the
//! attributes of files.

use crate::failure::{Failure, Result};
use crate::shown::shown;

/// The record of an archive, and the attribute of a file.
pub(super) const KINDS: [(&[u8], &[u8]); 2] = [
    (b"SCHILY.acl.access", b"system.posix_acl_access"),
    (b"SCHILY.acl.default", b"system.posix_acl_default"),
];

/// The version of the attributes.
const VERSION: u32 = 2;
/// In an entry that names nobody.
const NOBODY: u32 = u32::MAX;

/// Words for an entry, its short form, its tag, and that of one that names somebody.
const TAGS: [(&str, &str, u16, Option<u16>); 4] = [
    ("user", "u", 0x01, Some(0x02)),
    ("group", "g", 0x04, Some(0x08)),
    ("mask", "m", 0x10, None),
    ("other", "o", 0x20, None),
];
const BITS: [(u16, char); 3] = [(4, 'r'), (2, 'w'), (1, 'x')];

/// What the text of an ACL says.
#[derive(Debug, PartialEq)]
pub(super) enum Acl {
    /// No more than a mode.
    Mode,
    /// This attribute.
    Is(Vec<u8>),
    /// Something of a user or a group that has no number here: names are those of some machine.
    Of(String),
}

/// Reads the text of an ACL.
pub(super) fn to_attribute(text: &[u8]) -> Result<Acl> {
    let wrong = || Failure::new(format!("has the ACL `{}`", shown(text)));
    let lines = str::from_utf8(text)
        .map_err(|_| wrong())?
        .split(['\n', ',']);
    let lines = lines.map(|line| line.split('#').next().unwrap_or_default().trim());
    let mut entries = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        match entry(line).ok_or_else(wrong)? {
            Ok(entry) => entries.push(entry),
            Err(who) => return Ok(Acl::Of(who)),
        }
    }
    if entries.len() <= 3 {
        return Ok(Acl::Mode);
    }
    // The kernel wants them in this order.
    entries.sort_by_key(|(tag, _, id)| (*tag, *id));
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(bits.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    Ok(Acl::Is(value))
}

/// Reads `TAG:WHO:RIGHTS` or `TAG:WHO:RIGHTS:NUMBER`: tag, rights and number, or
/// the name that has none.
fn entry(line: &str) -> Option<Result<(u16, u16, u32), String>> {
    let mut fields = line.split(':').map(str::trim);
    let word = fields.next()?;
    let (_, _, tag, named) = TAGS.iter().find(|row| word == row.0 || word == row.1)?;
    let mut who = fields.next()?;
    let mut rights = fields.next();
    // The mask and the others may be written with one colon.
    if rights.is_none() && named.is_none() {
        (who, rights) = ("", Some(who));
    }
    let mut bits = 0;
    for c in rights?.chars().filter(|c| *c != '-') {
        bits |= BITS.iter().find(|(_, letter)| *letter == c)?.0;
    }
    if who.is_empty() {
        return Some(Ok((*tag, bits, NOBODY)));
    }
    let tag = (*named)?;
    let number = fields.next().unwrap_or(who);
    let id = number.parse().map_err(|_| who.to_owned());
    Some(id.map(|id| (tag, bits, id)))
}

/// Returns the text of an ACL; `None` if the attribute is none.
pub(super) fn to_text(value: &[u8]) -> Option<String> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    let (entries, rest) = entries.as_chunks::<8>();
    if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
        return None;
    }
    let mut text = String::new();
    for [a, b, c, d, id @ ..] in entries {
        let (tag, bits) = (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]));
        let is_it = |row: &&(&str, &str, u16, Option<u16>)| row.2 == tag || row.3 == Some(tag);
        let row = TAGS.iter().find(is_it)?;
        let who = if row.2 == tag {
            String::new()
        } else {
            u32::from_le_bytes(*id).to_string()
        };
        let right = |(bit, letter): (u16, char)| if bits & bit != 0 { letter } else { '-' };
        let rights: String = BITS.map(right).iter().collect();
        text.push_str(&format!("{}:{who}:{rights}\n", row.0));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "user::rw-\nuser:5:r--\ngroup::r-x\ngroup:7:-w-\nmask::rwx\nother::---\n";

    #[test]
    fn text_and_attribute_say_the_same() {
        let Acl::Is(value) = to_attribute(TEXT.as_bytes()).unwrap() else {
            panic!("an ACL");
        };
        assert_eq!(value.len(), 4 + 6 * 8);
        assert_eq!(to_text(&value).unwrap(), TEXT);
        // In other words and in another order; a name with its number.
        let other = "o:---,u::rw,m:rwx, g:wheel:-w-:7,g::r-x #effective,user:lisa:r--:5";
        let is = to_attribute(other.as_bytes()).unwrap();
        assert_eq!(is, Acl::Is(value.clone()));
        let mode = b"user::rw-\ngroup::r--\nother::r--";
        assert_eq!(to_attribute(mode).unwrap(), Acl::Mode);
        let named = to_attribute(b"user:lisa:r").unwrap();
        assert_eq!(named, Acl::Of("lisa".to_owned()));
        for wrong in ["user:", "nobody::r", "user::rz", "mask:5:r", "user", "\x7f"] {
            assert!(to_attribute(wrong.as_bytes()).is_err(), "{wrong}");
        }
        for wrong in [
            &b"x"[..],
            &value[..7],
            &[3; 12],
            &[2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(to_text(wrong), None);
        }
    }
}
