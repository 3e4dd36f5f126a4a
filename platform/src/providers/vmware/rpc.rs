//! Commands to the hypervisor, over its port four bytes at a time: the way that every version of it takes. The dependency
//! `vmw_backdoor` reads variables and sends no other command.
//!
//! After `lib/message/message.c` and `lib/include/guest_msg_def.h` of open-vm-tools
//! (<https://github.com/vmware/open-vm-tools>).

/// The registers of one exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Registers {
    pub(super) a: u32,
    pub(super) b: u32,
    pub(super) c: u32,
    pub(super) d: u32,
    pub(super) si: u32,
    pub(super) di: u32,
}

/// One exchange with the port.
pub(super) type Call<'a> = &'a mut dyn FnMut(Registers) -> Registers;

/// The hypervisor's magic number, its port, and its command for messages.
const MAGIC: u32 = 0x564d_5868;
pub(super) const PORT: u32 = 0x5658;
pub(super) const MESSAGE: u32 = 0x1e;
/// The protocol of commands, with the flag for channels that have cookies.
pub(super) const RPCI: u32 = 0x4943_5052 | 0x8000_0000;

/// Kinds of messages, in the upper half of `ecx`.
pub(super) const OPEN: u32 = 0;
pub(super) const SEND_SIZE: u32 = 1;
pub(super) const SEND: u32 = 2;
pub(super) const RECEIVE_SIZE: u32 = 3;
pub(super) const RECEIVE: u32 = 4;
pub(super) const RECEIVED: u32 = 5;
pub(super) const CLOSE: u32 = 6;

/// Status bits of an answer, in the upper half of `ecx`.
pub(super) const SUCCESS: u32 = 0x01;
/// There is a message to receive.
pub(super) const WAITING: u32 = 0x02;
/// The machine was suspended or moved in between: the step, sending or receiving, is to be repeated from its beginning.
pub(super) const CHECKPOINT: u32 = 0x10;

/// Attempts at one step.
const ATTEMPTS: usize = 3;
/// The longest answer that is taken, in bytes.
const LONGEST: u32 = 1 << 20;

/// Why an exchange failed.
#[derive(Debug, PartialEq, Eq)]
enum Broken {
    Checkpoint,
    Refused(&'static str),
}

/// An open channel.
struct Channel<'a> {
    call: Call<'a>,
    /// In the upper half.
    id: u32,
    cookies: (u32, u32),
}

/// Sets a variable of the machine, `guestinfo.…`.
///
/// # Errors
/// The step that the hypervisor refused, or its own answer.
pub(super) fn set(call: Call<'_>, name: &str, value: &[u8]) -> Result<(), String> {
    let command = [b"info-set ", name.as_bytes(), b" ", value].concat();
    let mut channel = Channel::open(call)?;
    let answer = channel.ask(&command);
    channel.close();
    match answer?.split_first() {
        Some((b'1', _)) => Ok(()),
        Some((_, why)) => Err(format!(
            "the hypervisor refused it: {}",
            String::from_utf8_lossy(why).trim()
        )),
        None => Err("the hypervisor gave an empty answer".to_owned()),
    }
}

impl<'a> Channel<'a> {
    fn open(call: Call<'a>) -> Result<Self, String> {
        let answer = call(Registers {
            a: MAGIC,
            b: RPCI,
            c: OPEN << 16 | MESSAGE,
            d: PORT,
            ..Registers::default()
        });
        match answer.c >> 16 & SUCCESS {
            0 => Err("the hypervisor opened no channel".to_owned()),
            _ => Ok(Self {
                call,
                id: answer.d & 0xffff_0000,
                cookies: (answer.si, answer.di),
            }),
        }
    }

    /// Sends a command and gives the answer.
    fn ask(&mut self, command: &[u8]) -> Result<Vec<u8>, String> {
        self.repeated(|channel| channel.send(command))?;
        // Not the command again: the answer to the first one is still waiting.
        self.repeated(Self::receive)
    }

    fn repeated<T>(&mut self, step: impl Fn(&mut Self) -> Result<T, Broken>) -> Result<T, String> {
        for _ in 0..ATTEMPTS {
            match step(self) {
                Ok(done) => return Ok(done),
                Err(Broken::Refused(step)) => return Err(format!("the hypervisor refused {step}")),
                Err(Broken::Checkpoint) => {}
            }
        }
        Err("the machine was suspended at each attempt".to_owned())
    }

    fn send(&mut self, command: &[u8]) -> Result<(), Broken> {
        let size = u32::try_from(command.len());
        let size = size.map_err(|_| Broken::Refused("a command of this length"))?;
        self.exchange(SEND_SIZE, size, "the length of a command")?;
        for piece in command.chunks(4) {
            let mut word = [0; 4];
            word[..piece.len()].copy_from_slice(piece);
            self.exchange(SEND, u32::from_le_bytes(word), "a command")?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Vec<u8>, Broken> {
        let answer = self.exchange(RECEIVE_SIZE, 0, "the length of its answer")?;
        let size = answer.b;
        if answer.c >> 16 & WAITING == 0 || size > LONGEST {
            return Err(Broken::Refused("an answer"));
        }
        let mut out = Vec::new();
        for at in (0..size).step_by(4) {
            let piece = self
                .exchange(RECEIVE, SUCCESS, "its answer")?
                .b
                .to_le_bytes();
            let most = usize::try_from(size - at).unwrap_or(4).min(4);
            out.extend(&piece[..most]);
        }
        self.exchange(RECEIVED, SUCCESS, "the end of its answer")?;
        Ok(out)
    }

    fn exchange(&mut self, kind: u32, b: u32, step: &'static str) -> Result<Registers, Broken> {
        let answer = (self.call)(Registers {
            a: MAGIC,
            b,
            c: kind << 16 | MESSAGE,
            d: self.id | PORT,
            si: self.cookies.0,
            di: self.cookies.1,
        });
        match answer.c >> 16 {
            status if status & SUCCESS != 0 => Ok(answer),
            status if status & CHECKPOINT != 0 => Err(Broken::Checkpoint),
            _ => Err(Broken::Refused(step)),
        }
    }

    /// What the hypervisor answers to it changes nothing.
    fn close(&mut self) {
        self.exchange(CLOSE, 0, "the end")
            .map(drop)
            .unwrap_or_default();
    }
}

#[cfg(test)]
mod tests;
