//! ACLs as archives have them: as text, a line for each entry.
//!
//! Sources: acl(5), "ACL Text Forms"; star(4) and bsdtar's tar(5) for `SCHILY.acl.access` and
//! `SCHILY.acl.default`, where a number may stand behind a name.

use stetfs_format::acl::{Acl, AclEntry, Tag};

use crate::failure::{Failure, Result};
use crate::owners::{ACL_ACCESS, ACL_DEFAULT};
use crate::shown::shown;

/// The record of an archive, and the attribute of a file.
pub(super) const KINDS: [(&[u8], &[u8]); 2] = [
    (b"SCHILY.acl.access", ACL_ACCESS),
    (b"SCHILY.acl.default", ACL_DEFAULT),
];

/// Words for an entry, and their short forms.
const WORDS: [(&str, &str); 4] = [("user", "u"), ("group", "g"), ("mask", "m"), ("other", "o")];
const BITS: [(u8, char); 3] = [(4, 'r'), (2, 'w'), (1, 'x')];

/// What the text of an ACL says.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    /// No more than a mode.
    Mode,
    /// This attribute.
    Is(Vec<u8>),
    /// Something of a user or a group that has no number here: names are those of some machine.
    Of(String),
}

/// Reads the text of the ACL that is in the attribute `name`.
pub(super) fn to_attribute(name: &[u8], text: &[u8]) -> Result<Said> {
    let wrong = || Failure::new(format!("has the ACL `{}`", shown(text)));
    let lines = str::from_utf8(text)
        .map_err(|_| wrong())?
        .split(['\n', ',']);
    let lines = lines.map(|line| line.split('#').next().unwrap_or_default().trim());
    let mut entries = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        match entry(line).ok_or_else(wrong)? {
            Ok(entry) => entries.push(entry),
            Err(who) => return Ok(Said::Of(who)),
        }
    }
    // Owner, group and the others: that is the mode, or what new files get.
    if entries.is_empty() || entries.len() == 3 && name == ACL_ACCESS {
        return Ok(Said::Mode);
    }
    entries.sort_by_key(|entry| entry.tag);
    let acl = Acl::new(entries).map_err(|e| wrong().context(e))?;
    Ok(Said::Is(acl.encode_xattr()))
}

/// Reads `TAG:WHO:RIGHTS` or `TAG:WHO:RIGHTS:NUMBER`: an entry, or the name that has no number.
fn entry(line: &str) -> Option<Result<AclEntry, String>> {
    let mut fields = line.split(':').map(str::trim);
    let word = fields.next()?;
    let (word, _) = WORDS.iter().find(|row| word == row.0 || word == row.1)?;
    let mut who = fields.next()?;
    let mut rights = fields.next();
    // The mask and the others may be written with one colon.
    if rights.is_none() && matches!(*word, "mask" | "other") {
        (who, rights) = ("", Some(who));
    }
    let mut perm = 0;
    for c in rights?.chars().filter(|c| *c != '-') {
        perm |= BITS.iter().find(|(_, letter)| *letter == c)?.0;
    }
    let number = fields.next().unwrap_or(who).parse();
    let tag = match (*word, who, number) {
        ("user", "", _) => Tag::UserObj,
        ("group", "", _) => Tag::GroupObj,
        ("mask", "", _) => Tag::Mask,
        ("other", "", _) => Tag::Other,
        ("user", _, Ok(id)) => Tag::User(id),
        ("group", _, Ok(id)) => Tag::Group(id),
        ("user" | "group", ..) => return Some(Err(who.to_owned())),
        _ => return None,
    };
    Some(Ok(AclEntry { tag, perm }))
}

/// Returns the text of an ACL; `None` if the attribute is none.
pub(super) fn to_text(value: &[u8]) -> Option<String> {
    let acl = Acl::decode_xattr(value).ok()??;
    let line = |entry: &AclEntry| {
        let (word, who) = match entry.tag {
            Tag::UserObj => ("user", String::new()),
            Tag::User(id) => ("user", id.to_string()),
            Tag::GroupObj => ("group", String::new()),
            Tag::Group(id) => ("group", id.to_string()),
            Tag::Mask => ("mask", String::new()),
            Tag::Other => ("other", String::new()),
        };
        let right = |(bit, letter): (u8, char)| if entry.perm & bit != 0 { letter } else { '-' };
        let rights: String = BITS.map(right).iter().collect();
        format!("{word}:{who}:{rights}\n")
    };
    Some(acl.entries().iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "user::rw-\nuser:5:r--\ngroup::r-x\ngroup:7:-w-\nmask::rwx\nother::---\n";

    #[test]
    fn text_and_attribute_say_the_same() {
        let Said::Is(value) = to_attribute(ACL_ACCESS, TEXT.as_bytes()).unwrap() else {
            panic!("an ACL");
        };
        assert_eq!(value.len(), 4 + 6 * 8);
        assert_eq!(to_text(&value).unwrap(), TEXT);
        // In other words and in another order; a name with its number.
        let other = "o:---,u::rw,m:rwx, g:wheel:-w-:7,g::r-x #effective,user:lisa:r--:5";
        let is = to_attribute(ACL_ACCESS, other.as_bytes()).unwrap();
        assert_eq!(is, Said::Is(value.clone()));
        let mode = b"user::rw-\ngroup::r--\nother::r--";
        assert_eq!(to_attribute(ACL_ACCESS, mode).unwrap(), Said::Mode);
        // A directory's new files get it.
        assert!(matches!(
            to_attribute(ACL_DEFAULT, mode).unwrap(),
            Said::Is(_)
        ));
        let named = to_attribute(ACL_ACCESS, b"user:lisa:r").unwrap();
        assert_eq!(named, Said::Of("lisa".to_owned()));
        for wrong in [
            "user:",
            "nobody::r",
            "user::rz",
            "mask:5:r",
            "user",
            "\x7f",
            "user:5:r",
            "u::r,u:5:r,g::r,o::r",
        ] {
            assert!(
                to_attribute(ACL_ACCESS, wrong.as_bytes()).is_err(),
                "{wrong}"
            );
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
