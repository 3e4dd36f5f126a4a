use super::*;

/// A bucket of every size: empty, inline, some pages, branches above branches, and values larger than a page.
fn tree() -> Bucket {
    let mut root = Bucket::default();
    root.at(&["v1", "empty"]);
    root.at(&["v1"]).put("version", [6]);
    root.at(&["v1", "k8s.io", "images", "a"])
        .put("digest", "sha256:0");
    let many = root.at(&["v1", "many"]);
    many.sequence = 77;
    for number in 0..40_000 {
        many.put(&format!("key {number:05}"), vec![b'x'; number % 97]);
    }
    root.at(&["large"]).put("value", vec![7; 3 * PAGE + 5]);
    root.at(&["large"]).put("another", vec![8; PAGE]);
    root
}

#[test]
fn what_is_written_reads_back() {
    for root in [Bucket::default(), tree()] {
        let file = write(&root);
        assert_eq!(file.len() % PAGE, 0);
        assert!(read(&file).unwrap() == root);
        assert_eq!(write(&read(&file).unwrap()), file);
    }
}

#[test]
fn one_damaged_meta_page_is_made_up_for_by_the_other() {
    let good = write(&tree());
    for page in [0, 1] {
        let mut file = good.clone();
        file[page * PAGE + HEADER + 16] ^= 1;
        assert!(read(&file).unwrap() == tree(), "{page}");
        file[(1 - page) * PAGE + HEADER + 48] ^= 1;
        let error = read(&file).unwrap_err().to_string();
        assert!(error.contains("meta pages"), "{error}");
    }
}

/// bbolt 1.3.11 wrote the fixture: `v1/version`, `v1/k8s.io/images` with a sequence of 3 and 200 keys, beside one that is a
/// bucket, with the keys below 100 deleted again, so that pages are free and the newest meta page is the second.
#[test]
fn a_file_of_bbolt_is_read() {
    let root = read(include_bytes!("fixture.db")).unwrap();
    let v1 = root.bucket("v1").unwrap();
    assert_eq!(v1.value("version"), Some(&[6][..]));
    let images = v1
        .bucket("k8s.io")
        .and_then(|k| k.bucket("images"))
        .unwrap();
    assert_eq!(images.sequence, 3);
    assert_eq!(images.items.len(), 101);
    assert_eq!(images.value("image 00099"), None);
    assert_eq!(
        images.value("image 00100"),
        Some("value of 100".repeat(9).as_bytes())
    );
    assert_eq!(
        images.bucket("inner").unwrap().value("digest"),
        Some(&b"sha256:1"[..])
    );
    assert!(read(&write(&root)).unwrap() == root);
}

#[test]
fn damage_is_an_error_and_never_endless() {
    let good = write(&{
        let mut root = tree();
        root.items.remove(&b"large"[..]);
        let many = root.at(&["v1", "many"]);
        many.items.retain(|key, _| key.ends_with(b"0"));
        root
    });
    assert!(read(&[]).is_err());
    assert!(read(&good[..good.len() - PAGE]).is_err());
    let mut seed = 1_u64;
    for _ in 0..300 {
        let mut file = good.clone();
        for _ in 0..3 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = usize::try_from(seed >> 33).unwrap() % (file.len() - 2 * PAGE) + 2 * PAGE;
            file[at] = (seed >> 24).to_le_bytes()[0];
        }
        // It ends, with whatever is there.
        drop(read(&file));
    }
}

#[test]
fn a_page_that_leads_to_itself_is_refused() {
    let mut file = write(&tree());
    let (at, page) = (FIRST_BRANCH..file.len() / PAGE)
        .map(|page| (page * PAGE, page))
        .find(|(at, _)| file[at + 8] == 1)
        .unwrap();
    file[at + HEADER + 8..at + HEADER + 16].copy_from_slice(&(page as u64).to_le_bytes());
    let error = read(&file).unwrap_err().to_string();
    assert!(
        error.contains("more pages") || error.contains("too deep"),
        "{error}"
    );
}

/// The first page that can be a branch.
const FIRST_BRANCH: usize = 3;
