//! Each citation is one of `docs/PAPERS.md`, with its authors. Those of one paper were once
//! invented, in five places, and nothing noticed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use stetfs_lab::experiment::EXPERIMENTS;
use stetfs_schemes::SCHEMES;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const LIST: &str = "docs/PAPERS.md";

/// Conferences; "NAME YEAR" is a citation.
const CONFERENCES: [&str; 24] = [
    "ASPLOS",
    "ATC",
    "DSN",
    "EuroSys",
    "FAST",
    "HPCA",
    "HPCC",
    "HotStorage",
    "ICNC",
    "IRPS",
    "ISCA",
    "LinuxExpo",
    "MICRO",
    "MSST",
    "NPC",
    "NVMSA",
    "OOPSLA",
    "OSDI",
    "SC",
    "SIGMOD",
    "SOSP",
    "SYSTOR",
    "USENIX",
    "VLDB",
];

/// A line of the list.
struct Paper {
    /// "Yan, Huang, Huang"
    authors: String,
    /// "NPC 2019"
    venue: String,
    title: String,
}

fn papers() -> Vec<Paper> {
    let text = fs::read_to_string(Path::new(ROOT).join(LIST)).expect(LIST);
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    let papers = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        // The venue begins where the names end: at the last comma, except for venues that contain
        // commas.
        let starts = [", IEEE", ", ACM", ", NetApp", ", Color"].map(|name| cells[1].find(name));
        let start = starts.into_iter().flatten().next();
        let start = start
            .or(cells[1].rfind(", "))
            .unwrap_or_else(|| panic!("{row}"));
        let title = cells[2]
            .split('"')
            .nth(1)
            .unwrap_or_else(|| panic!("no title: {row}"));
        let authors = &cells[1][..start];
        // The long form has the names of the short one, in this order.
        let full = cells[2].split('"').next().unwrap_or_default();
        let mut from = 0;
        for name in authors.trim_end_matches(" and others").split(", ") {
            let at = full[from..].find(name);
            from += at.unwrap_or_else(|| panic!("{name} is not in {full}"));
            from += name.len();
        }
        Paper {
            authors: authors.to_owned(),
            venue: cells[1][start + 2..].to_owned(),
            title: title.to_owned(),
        }
    });
    papers.collect()
}

/// Returns every text of the tree, as a path and as one line, without the marks of comments.
fn texts() -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        for entry in entries {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if path.is_dir() {
                if !name.starts_with('.')
                    && !["target", "corpus", "artifacts"].contains(&name.as_str())
                {
                    walk(&path, found);
                }
            } else if [".rs", ".md", ".sh", ".toml", ".json"]
                .iter()
                .any(|end| name.ends_with(end))
            {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new(ROOT), &mut found);
    let this = Path::new(file!()).file_name();
    found.retain(|path| !path.ends_with(LIST) && path.file_name() != this);
    let text = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let bare = text.lines().map(|line| {
            line.trim_start()
                .trim_start_matches(['/', '!', '#', '|'])
                .trim()
        });
        let joined = bare.collect::<Vec<_>>().join(" ");
        (path, joined.replace("  ", " "))
    };
    found.into_iter().map(text).collect()
}

/// Returns at most this many bytes of text before a place.
fn before(text: &str, at: usize, bytes: usize) -> &str {
    let mut from = at.saturating_sub(bytes);
    while !text.is_char_boundary(from) {
        from -= 1;
    }
    &text[from..at]
}

#[test]
fn each_citation_is_in_the_list() {
    let (papers, mut wrong, mut cited) = (papers(), Vec::new(), BTreeSet::new());
    for (path, text) in texts() {
        for conference in CONFERENCES {
            for (at, _) in text.match_indices(conference) {
                let rest = &text[at + conference.len()..];
                let year: String = rest.trim_start_matches(' ').chars().take(4).collect();
                let is_word = text[..at]
                    .chars()
                    .next_back()
                    .is_none_or(|c| !c.is_alphanumeric());
                if !is_word
                    || !rest.starts_with(' ')
                    || !["19", "20"].contains(&year.get(..2).unwrap_or(""))
                    || year.parse::<u32>().is_err()
                {
                    continue;
                }
                let venue = format!("{conference} {year}");
                if !papers.iter().any(|paper| paper.venue == venue) {
                    wrong.push(format!("{}: {venue} is not in {LIST}", path.display()));
                }
            }
        }
        for paper in &papers {
            for (at, _) in text.match_indices(&paper.venue) {
                // The title may stand between authors and venue.
                if before(&text, at, paper.authors.len() + paper.title.len() + 16)
                    .contains(&paper.authors)
                {
                    cited.insert((&paper.authors, &paper.venue));
                } else if !papers.iter().any(|other| {
                    other.venue == paper.venue
                        && before(&text, at, other.authors.len() + other.title.len() + 16)
                            .contains(&other.authors)
                }) {
                    wrong.push(format!(
                        "{}: {} without {}",
                        path.display(),
                        paper.venue,
                        paper.authors
                    ));
                }
            }
            for (at, _) in text.match_indices(&paper.title) {
                if !before(&text, at, paper.authors.len() + 4).contains(&paper.authors) {
                    wrong.push(format!(
                        "{}: \"{}\" without {}",
                        path.display(),
                        paper.title,
                        paper.authors
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A paper that nothing cites needs no line.
    let idle: Vec<_> = papers
        .iter()
        .filter(|paper| !cited.contains(&(&paper.authors, &paper.venue)))
        .map(|paper| &paper.title)
        .collect();
    assert!(idle.is_empty(), "nowhere cited: {idle:?}");
}

/// Finds quoted text behind authors of the list, or before a venue of it in brackets, that is the
/// title of none of their papers.
fn wrong_titles(papers: &[Paper], text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |title: &str, is_of: &dyn Fn(&Paper) -> bool| {
        let mut of = papers.iter().filter(|paper| is_of(paper));
        if !of.any(|paper| paper.title == title) {
            wrong.push(title.to_owned());
        }
    };
    for paper in papers {
        let authors = paper.authors.trim_end_matches(" and others");
        for (at, begin) in text.match_indices(&format!("{authors}, \"")) {
            let quoted = text[at + begin.len()..].split_once('"');
            if let Some((title, _)) = quoted {
                check(title, &|other| other.authors == paper.authors);
            }
        }
        for (at, _) in text.match_indices(&format!("\" ({})", paper.venue)) {
            let (_, title) = text[..at].rsplit_once('"').unwrap_or_default();
            check(title, &|other| other.venue == paper.venue);
        }
    }
    wrong
}

/// Renaming a type once changed two titles in comments.
#[test]
fn titles_are_those_of_the_list() {
    let papers = papers();
    let wrong: Vec<_> = texts()
        .into_iter()
        .flat_map(|(path, text)| {
            let titles = wrong_titles(&papers, &text).into_iter();
            titles
                .map(|title| format!("{}: {title:?} is not in {LIST}", path.display()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let renamed = "Yan, Huang, Huang, \"An NVM NvmCache\" (NPC 2019)";
    assert_eq!(wrong_titles(&papers, renamed), ["An NVM NvmCache"; 2]);
}

#[test]
fn experiments_and_schemes_name_their_papers() {
    let papers = papers();
    let shorts: Vec<String> = papers
        .iter()
        .map(|paper| format!("{}, {}", paper.authors, paper.venue))
        .collect();
    let names_one = |text: &str| shorts.iter().any(|short| text.starts_with(short.as_str()));
    for experiment in EXPERIMENTS.iter() {
        let is_our_own = experiment.paper.starts_with("none; ");
        assert!(
            is_our_own || names_one(experiment.paper),
            "{}: {}",
            experiment.id,
            experiment.paper
        );
    }
    for scheme in SCHEMES {
        let about = scheme.about;
        let elsewhere = ["none", "kernel ", "docs/"];
        let is_from_elsewhere = elsewhere.iter().any(|from| about.source.starts_with(from));
        assert!(
            is_from_elsewhere || names_one(about.source),
            "{}: {}",
            about.name,
            about.source
        );
    }
}
