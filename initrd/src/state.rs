//! State: the partitions that the first boot makes and every boot grows; the `/etc` overlay; the machine id.
