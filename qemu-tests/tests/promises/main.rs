//! The promises of the README, each one function with its proof. They run one after the other, those that share a
//! machine together.

mod boot;
mod clevis;
mod disks;
mod etcd_disk;
mod ignition;
mod kubelet;
mod leave;
mod network;
mod power;
mod pxe;
mod recipes;
mod report;
mod secrets;
mod stack;
mod state;
mod timeline;
mod verity;

use std::process::ExitCode;

use qemu_tests::runner::{self, Promise};

macro_rules! promises {
    ($($module:ident::$name:ident,)*) => {
        &[$(Promise { name: concat!(stringify!($module), "::", stringify!($name)), prove: $module::$name }),*]
    };
}

/// In the order that boots the fewest machines.
const PROMISES: &[Promise] = promises![
    boot::by_uefi_to_the_handoff,
    verity::the_root_is_protected_on_a_running_node,
    ignition::files_units_and_users_are_there,
    kubelet::etcd_answers_health_with_its_data_on_the_etcd_disk,
    kubelet::ready_it_blesses_the_boot_entry,
    kubelet::killed_it_comes_back_and_mounts_do_not_grow,
    timeline::each_boot_leaves_one_that_the_tool_draws,
    etcd_disk::formatted_once_its_data_survives_five_reboots,
    boot::a_second_one_asks_no_network_and_formats_nothing,
    etcd_disk::absent_the_kubelet_does_not_start_and_the_console_says_why,
    etcd_disk::foreign_content_is_refused_and_unchanged,
    ignition::a_failing_hash_leaves_nothing_applied,
    ignition::kernel_arguments_arrive_with_one_reboot,
    ignition::a_changed_one_is_told_and_not_applied,
    disks::made_and_filled_they_survive_a_second_boot,
    disks::a_file_system_at_var_takes_the_place_of_the_images,
    disks::a_partition_is_resized_in_place,
    disks::a_mismatch_is_refused_and_no_disk_changes,
    power::cuts_anywhere_in_the_first_boot_converge,
    stack::a_mirror_survives_the_loss_of_a_disk,
    stack::volumes_open_by_their_key_file_and_by_the_tpm,
    clevis::volumes_open_by_a_tang_server_and_by_two_pins,
    stack::an_encrypted_mirror_serves_as_var,
    stack::an_array_that_is_made_is_not_made_again,
    stack::in_ignitions_place_arrays_and_volumes_are_made,
    verity::a_flipped_byte_of_the_superblock_ends_in_the_report,
    verity::a_flipped_byte_that_systemd_reads_panics_and_spends_a_boot,
    network::a_fixed_address_fetches_the_config_and_is_handed_over,
    network::a_vlan_over_a_bond_tags_its_packets,
    report::goes_to_the_port_and_to_the_server,
    secrets::of_a_config_are_printed_nowhere,
    pxe::ipxe_boots_kernel_initrd_and_root_by_http,
    boot::on_nvme_and_scsi_controllers,
    state::var_grows_with_its_disk,
    state::the_third_failure_for_one_reason_stays_up,
    recipes::each_boots_on_the_controllers_that_it_meets,
    leave::running_leaves_no_process_and_no_disk,
];

fn main() -> ExitCode {
    runner::main(PROMISES)
}
