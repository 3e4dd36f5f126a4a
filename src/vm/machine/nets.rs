//! The user networks of QEMU that a machine's cards are on, as arguments.

/// A user network of QEMU with the cards on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Net {
    /// How many cards are on it.
    pub cards: u8,
    /// The versions of IP that it has.
    pub versions: Versions,
    /// The third octet of its IPv4 addresses: 10.0.2.0/24 if this is 2. Networks that one bond is on have the same.
    pub octet: u8,
    /// Whether every packet between the cards and the network goes by two sockets of whoever starts the machine, which may
    /// change it; see [`Net::sockets`].
    pub by_sockets: bool,
}

/// The octet that QEMU takes unless another one is named.
const USUAL: u8 = 2;

/// Versions of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// Both.
    Both,
    /// Version 4 alone.
    Four,
    /// Version 6 alone.
    Six,
}

impl Default for Net {
    fn default() -> Self {
        Self {
            cards: 1,
            versions: Versions::Both,
            octet: USUAL,
            by_sockets: false,
        }
    }
}

impl Net {
    /// The names of the sockets of a network in the machine's folder: the cards' and the network's. Whoever starts the machine
    /// listens at both before. Each packet is preceded by its length, four bytes, highest first.
    #[must_use]
    pub fn sockets(number: usize) -> [String; 2] {
        [
            format!("net{number}-cards.sock"),
            format!("net{number}-user.sock"),
        ]
    }

    /// The arguments that make the network, which the cards find under these ids. `more` is added to the user network, `folder`
    /// is where the sockets are.
    pub(super) fn backends(
        &self,
        number: usize,
        more: &str,
        folder: &str,
    ) -> (Vec<String>, Vec<String>) {
        let id = Self::id(number);
        let mut user = format!("user,id={id}");
        if self.octet != USUAL {
            user += &format!(",net=10.0.{}.0/24", self.octet);
        }
        user += match self.versions {
            Versions::Both => "",
            Versions::Four => ",ipv6=off",
            Versions::Six => ",ipv4=off",
        };
        user += more;
        if self.cards == 1 && !self.by_sockets {
            return (vec![user], vec![id]);
        }
        let mut out = vec![user];
        // Two hubs with the sockets between them, or one.
        let (inner, outer) = (2 * number, 2 * number + usize::from(self.by_sockets));
        let hub = |hub: usize, name: &str, to: &str| format!("hubport,id={name},hubid={hub}{to}");
        out.push(hub(inner, &format!("{id}-hub"), &format!(",netdev={id}")));
        if self.by_sockets {
            let ends = [("cards", outer), ("user", inner)];
            for ((end, at), file) in ends.into_iter().zip(Self::sockets(number)) {
                let own = format!("{id}-{end}");
                out.push(format!(
                    "stream,id={own},server=off,addr.type=unix,addr.path={folder}/{file}"
                ));
                out.push(hub(at, &format!("{own}-hub"), &format!(",netdev={own}")));
            }
        }
        let ids: Vec<String> = (0..self.cards)
            .map(|card| format!("{id}-card{card}"))
            .collect();
        out.extend(ids.iter().map(|card| hub(outer, card, "")));
        (out, ids)
    }

    fn id(number: usize) -> String {
        match number {
            0 => "net".to_owned(),
            number => format!("net{number}"),
        }
    }
}

/// The Ethernet address of a machine's card.
#[must_use]
pub fn mac(card: usize) -> String {
    format!("52:54:00:51:1b:{:02x}", 10 + card)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_card_is_on_the_network_itself_and_several_on_a_hub() {
        let (backends, cards) = Net::default().backends(0, ",bootfile=x", "/place");
        assert_eq!(
            (backends, cards),
            (
                vec!["user,id=net,bootfile=x".to_owned()],
                vec!["net".to_owned()]
            )
        );
        let two = Net {
            cards: 2,
            versions: Versions::Six,
            ..Net::default()
        };
        let (backends, cards) = two.backends(0, "", "/place");
        assert_eq!(cards, ["net-card0", "net-card1"]);
        assert_eq!(
            backends,
            [
                "user,id=net,ipv4=off",
                "hubport,id=net-hub,hubid=0,netdev=net",
                "hubport,id=net-card0,hubid=0",
                "hubport,id=net-card1,hubid=0",
            ]
        );
        let through = Net {
            octet: 3,
            by_sockets: true,
            ..two
        };
        let (backends, _) = through.backends(1, "", "/place");
        let all = backends.join(" ");
        assert!(
            all.contains("user,id=net1,net=10.0.3.0/24,ipv4=off hubport,id=net1-hub,hubid=2,"),
            "{all}"
        );
        assert!(
            all.contains("addr.path=/place/net1-cards.sock hubport,id=net1-cards-hub,hubid=3,"),
            "{all}"
        );
        assert!(
            all.contains("addr.path=/place/net1-user.sock hubport,id=net1-user-hub,hubid=2,"),
            "{all}"
        );
        assert!(all.contains("hubport,id=net1-card1,hubid=3"), "{all}");
    }
}
