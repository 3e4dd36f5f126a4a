//! A hypervisor as open-vm-tools knows it.

use super::*;

/// The far end of the port.
#[derive(Default)]
struct Hypervisor {
    open: bool,
    size: usize,
    command: Vec<u8>,
    answer: Vec<u8>,
    given: usize,
    /// Whether the answer is still to be received: no other command is taken before.
    waiting: bool,
    /// The number of the exchange at which the machine is suspended.
    suspended: Option<usize>,
    exchanges: usize,
}

const ID: u32 = 7 << 16;
const COOKIES: (u32, u32) = (0xaaaa, 0xbbbb);

impl Hypervisor {
    fn answering(text: &str) -> Self {
        Self {
            answer: text.as_bytes().to_vec(),
            ..Self::default()
        }
    }

    fn call(&mut self, asked: Registers) -> Registers {
        self.exchanges += 1;
        assert_eq!((asked.a, asked.c & 0xffff), (0x564d_5868, 0x1e));
        assert_eq!(asked.d & 0xffff, 0x5658);
        let kind = asked.c >> 16;
        if kind != OPEN {
            assert_eq!((asked.d & 0xffff_0000, (asked.si, asked.di)), (ID, COOKIES));
        }
        let with = |status: u32, b: u32| Registers {
            b,
            c: status << 16,
            ..asked
        };
        if self.suspended == Some(self.exchanges) {
            return with(CHECKPOINT, 0);
        }
        match kind {
            OPEN => {
                assert_eq!(asked.b, 0xc943_5052);
                self.open = true;
                let (si, di) = COOKIES;
                return Registers {
                    d: ID,
                    si,
                    di,
                    ..with(SUCCESS, 0)
                };
            }
            SEND_SIZE if self.waiting => return with(0, 0),
            SEND_SIZE => {
                self.size = usize::try_from(asked.b).unwrap();
                self.command.clear();
            }
            SEND => {
                self.command.extend(asked.b.to_le_bytes());
                self.waiting = self.command.len() >= self.size;
            }
            RECEIVE_SIZE => {
                assert!(self.waiting);
                self.given = 0;
                self.command.truncate(self.size);
                let size = u32::try_from(self.answer.len()).unwrap();
                return with(SUCCESS | WAITING, size);
            }
            RECEIVE => {
                let mut word = [0; 4];
                let rest = &self.answer[self.given..];
                let most = rest.len().min(4);
                word[..most].copy_from_slice(&rest[..most]);
                self.given += most;
                return with(SUCCESS, u32::from_le_bytes(word));
            }
            RECEIVED => {
                assert_eq!(self.given, self.answer.len());
                self.waiting = false;
            }
            CLOSE => self.open = false,
            other => panic!("kind {other}"),
        }
        with(SUCCESS, 0)
    }
}

fn set_on(hypervisor: &mut Hypervisor, value: &[u8]) -> Result<(), String> {
    set(&mut |asked| hypervisor.call(asked), "guestinfo.x", value)
}

#[test]
fn a_variable_is_set_whatever_its_length() {
    for value in ["", "a", "ab", "abc", "abcd", "abcde"] {
        let mut hypervisor = Hypervisor::answering("1 ");
        set_on(&mut hypervisor, value.as_bytes()).unwrap();
        let command = String::from_utf8(hypervisor.command).unwrap();
        assert_eq!(command, format!("info-set guestinfo.x {value}"));
        assert!(!hypervisor.open);
    }
}

#[test]
fn a_refusal_is_told_in_the_hypervisors_words() {
    let mut hypervisor = Hypervisor::answering("0 Permission denied");
    let why = set_on(&mut hypervisor, b"").unwrap_err();
    assert!(why.contains("Permission denied"), "{why}");
    assert!(!hypervisor.open);
    let why = set_on(&mut Hypervisor::answering(""), b"").unwrap_err();
    assert!(why.contains("empty"), "{why}");
    // A port that nobody answers gives back what was asked.
    let why = set(&mut |asked| asked, "guestinfo.x", b"").unwrap_err();
    assert!(why.contains("no channel"), "{why}");
}

#[test]
fn a_machine_that_is_moved_in_between_begins_the_step_anew() {
    let mut undisturbed = Hypervisor::answering("1 done");
    set_on(&mut undisturbed, b"value").unwrap();
    // Neither while the channel is opened nor while it is closed.
    for at in 2..undisturbed.exchanges {
        let mut hypervisor = Hypervisor::answering("1 done");
        hypervisor.suspended = Some(at);
        set_on(&mut hypervisor, b"value").unwrap();
        assert_eq!(hypervisor.command, b"info-set guestinfo.x value");
        assert!(hypervisor.exchanges > undisturbed.exchanges);
    }
}
