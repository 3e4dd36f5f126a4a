//! The promises of docs/promises.md that need a virtual machine, one function each. They run one after the other; those
//! that share a machine run together.

mod arrays;
mod boot;
mod capi;
mod clevis;
mod clock;
mod cluster;
mod copies;
mod disks;
mod drives;
mod esp;
mod etcd_disk;
mod etcd_writes;
mod faults;
mod filesystems;
mod first_boot;
mod hangs;
mod hosts;
mod ignition;
mod kube_proxy;
mod kubeadm;
mod kubelet;
mod leave;
mod loader;
mod network;
mod pinned;
mod plain;
mod power;
mod pxe;
mod recipes;
mod report;
mod secrets;
mod servers;
mod shutdown;
mod spool;
mod stack;
mod state;
mod timeline;
mod upgrade;
mod verity;
mod volumes;
mod watchdog;
mod words;
mod workstation;

use std::process::ExitCode;

use qemu_tests::runner::{self, Promise};

macro_rules! promises {
    ($($module:ident::$name:ident,)*) => {
        &[$(Promise { name: concat!(stringify!($module), "::", stringify!($name)), prove: $module::$name }),*]
    };
}

/// In the order that boots the fewest machines.
const PROMISES: &[Promise] = promises![
    boot::a_uefi_boot_reaches_the_handoff,
    verity::the_root_is_protected_on_a_running_node,
    ignition::files_units_and_users_are_applied,
    kubelet::etcd_is_healthy_with_its_data_on_the_etcd_disk,
    kubelet::a_ready_kubelet_blesses_the_boot_entry,
    kubelet::the_running_node_is_closed,
    kubelet::the_consoles_show_the_status_unless_they_ask_for_a_login,
    kubelet::container_images_are_folders_of_the_verified_root,
    kubelet::a_killed_kubelet_restarts_and_leaks_no_mounts,
    etcd_disk::a_blank_disk_is_formatted_once_and_keeps_its_data,
    boot::a_second_boot_uses_no_network_and_formats_nothing,
    etcd_disk::without_it_the_kubelet_waits_and_the_console_says_why,
    etcd_disk::unknown_content_is_refused_and_unchanged,
    ignition::a_wrong_hash_leaves_nothing_applied,
    ignition::kernel_arguments_take_one_reboot,
    ignition::a_changed_config_is_reported_and_not_applied,
    disks::file_systems_are_made_once_and_survive_a_second_boot,
    disks::a_partition_is_resized_in_place,
    disks::a_mismatch_is_refused_and_no_disk_changes,
    stack::an_encrypted_mirror_serves_as_var,
    stack::an_existing_array_is_not_made_again,
    verity::a_flipped_byte_of_the_superblock_ends_in_the_report,
    verity::a_flipped_byte_that_systemd_reads_panics_and_uses_up_a_try,
    loader::a_broken_image_gives_way_to_the_other_entry,
    network::a_static_address_fetches_the_config_and_is_handed_over,
    network::a_vlan_over_a_bond_tags_its_packets,
    report::a_report_goes_to_the_port_and_to_the_server,
    secrets::secrets_of_a_config_are_printed_nowhere,
    pxe::ipxe_boots_kernel_initrd_and_root_over_http,
    state::var_grows_with_its_disk,
    recipes::each_recipe_boots_on_its_platforms_controllers,
    leave::slipway_run_leaves_no_process_and_no_disk,
    // `cargo xtask test` runs it when all other tests have ended: real Kubernetes has time limits of its own.
    cluster::a_cluster_object_makes_a_ready_control_plane,
];

/// The long ones, each with several boots or waits of its own, and the matrix of arrays and volumes, of which CI proves what
/// has most in it (an encrypted mirror at `/var`): `just promises-long`. Of what another one proves on its way there are: a
/// timeline (the one of the cluster), a file system at `/var` (the mirror), both kinds of controllers (the recipes),
/// power cuts (those of the etcd disk; a first boot's were in CI until its time was over on a slow machine), the choice among etcd
/// volumes (unknown content), and the failure that stays up (the one that gives way to another image).
const LONG: &[Promise] = promises![
    boot::disks_on_nvme_and_scsi_controllers_boot,
    disks::a_file_system_at_var_replaces_the_images_own,
    timeline::each_boot_leaves_a_timeline_that_the_tool_draws,
    workstation::the_commands_run_a_cluster_with_a_worker,
    workstation::a_second_control_plane_joins_the_cluster,
    workstation::a_cluster_of_ip_version_6_alone_runs,
    workstation::a_worker_joins_once_the_token_has_ended,
    cluster::data_of_a_later_etcd_is_refused_and_kept,
    cluster::a_clock_that_is_set_by_two_years_leaves_the_cluster_ready,
    etcd_writes::no_acknowledged_key_is_lost_when_the_power_is_cut,
    etcd_disk::the_settings_and_the_disk_decide,
    etcd_disk::the_settings_adopt_another_volume_once,
    loader::a_default_that_is_gone_is_passed_over,
    loader::an_image_that_is_cut_short_gives_way_to_the_other_entry,
    copies::disks_that_are_there_twice_are_refused,
    drives::a_config_drive_gives_config_name_and_network,
    kubeadm::its_tools_read_a_cluster_of_ours,
    capi::the_kubeadm_provider_starts_a_control_plane,
    capi::the_provider_starts_a_control_plane_without_kubeadm,
    volumes::a_pod_has_volumes_by_nfs_and_iscsi,
    kube_proxy::services_are_reached_in_each_mode,
    pinned::a_pinned_kubelet_runs_in_place_of_the_images,
    shutdown::a_shutdown_waits_for_the_pods,
    words::a_node_has_what_its_recipe_says,
    servers::servers_of_packages_answer_on_both_boots,
    plain::a_complete_boot_without_a_kubelet_is_blessed,
    plain::files_of_var_come_to_a_node_once,
    pxe::a_root_by_https_is_fetched_by_the_recipes_authority,
    verity::another_root_than_the_command_lines_is_refused,
    faults::a_disk_that_fails_is_named_and_the_next_boot_converges,
    etcd_disk::a_node_takes_no_other_volume_than_its_own,
    disks::disks_have_the_names_that_udev_gives_them,
    state::the_third_failure_in_a_row_stays_up,
    hosts::a_cache_on_nfs_is_refused_and_the_documented_profile_is_taken,
    hangs::a_disk_that_hangs_is_waited_for_once_and_left_out_later,
    power::a_first_boot_cut_off_anywhere_converges,
    power::a_first_boot_whose_disks_lose_unflushed_writes_converges,
    power::a_recovery_that_is_cut_off_converges,
    boot::a_locked_down_kernel_loads_signed_modules,
    boot::a_module_of_dkms_is_loaded,
    boot::a_kernel_of_backports_boots_with_firmware,
    network::bonds_have_their_modes_and_vlans_their_tags,
    network::a_network_of_version_6_alone_brings_a_node_to_ready,
    watchdog::a_slow_download_is_left_alone_and_a_hang_is_reset,
    state::a_damaged_partition_table_is_restored_or_reported,
    state::damage_is_repaired_or_reported_and_nothing_is_formatted,
    disks::an_image_for_large_sectors_boots_on_such_disks_alone,
    filesystems::each_kind_is_made_once_kept_and_replaced_with_consent_alone,
    spool::a_file_larger_than_memory_is_verified_before_the_first_write,
    esp::a_full_esp_is_named_and_the_node_keeps_booting,
    esp::kernel_arguments_whose_writing_is_cut_off_converge,
    clock::a_clock_of_1970_is_raised_so_that_certificates_count,
    upgrade::a_node_of_an_earlier_build_boots_todays_image,
    upgrade::an_earlier_disk_is_kept_and_a_later_one_is_refused,
    clevis::volumes_open_with_a_tang_server_and_with_two_pins,
    stack::a_mirror_survives_the_loss_of_a_disk,
    arrays::each_level_bears_the_loss_that_it_promises,
    stack::an_encrypted_mirror_that_was_cut_off_is_completed,
    stack::volumes_open_with_their_key_file_and_with_the_tpm,
    stack::the_drop_in_for_ignition_makes_arrays_and_volumes,
    state::an_image_of_a_running_node_is_another_node,
];

fn main() -> ExitCode {
    runner::main(PROMISES, LONG)
}
