//! Whole clusters on this host: the nodes of an image in namespaces, with the real Kubernetes.

mod addons;
mod amazon;
mod balancer;
mod cloud;
mod containerd;
mod control_plane;
mod credentials;
mod dual_stack;
mod etcd_loss;
mod expired;
mod faults;
mod flannel;
mod join;
mod kubeadm;
mod kubeadm_objects;
mod metrics_server;
mod objects;
mod pods;
mod power_cuts;
mod provider;
mod slow_start;
mod update;
mod upkeep;

use std::process::ExitCode;

use namespace_tests::runner::{self, Test};

/// The image of the nodes, a path in the repository.
const RECIPE: &str = "namespace-tests/node.toml";

macro_rules! tests {
    ($($module:ident::$name:ident,)*) => {
        &[$(Test { name: concat!(stringify!($module), "::", stringify!($name)), prove: $module::$name }),*]
    };
}

const TESTS: &[Test] = tests![
    control_plane::a_node_serves_pods_and_has_them_again_after_a_power_cut,
    join::three_control_planes_and_a_worker_bear_the_loss_of_one,
    kubeadm::its_nodes_join_a_cluster_of_ours,
    kubeadm::ours_join_a_cluster_of_its,
    upkeep::addons_are_applied_although_the_api_server_is_killed,
    upkeep::certificates_are_made_anew_under_a_running_cluster,
    faults::joins_that_must_not_succeed_change_nothing,
    faults::a_bring_up_that_is_cut_again_and_again_goes_on,
    faults::a_cut_before_etcds_first_entry_begins_it_anew,
    faults::a_full_disk_is_named_and_loses_nothing,
    etcd_loss::a_cluster_whose_data_are_lost_begins_anew_only_when_told,
    dual_stack::pods_and_services_have_both_ip_versions,
    flannel::pods_on_two_networks_reach_each_other_by_vxlan,
];

/// Those that CI leaves out.
const LONG: &[Test] = tests![
    faults::each_component_that_is_killed_comes_back,
    faults::a_cut_before_a_further_members_first_entry_begins_it_anew,
    faults::joins_that_are_cut_again_and_again_go_on,
    kubeadm_objects::ours_are_those_of_kubeadm_but_for_what_is_declared,
    power_cuts::a_first_bring_up_goes_on_from_each_journalled_step,
    power_cuts::joins_go_on_from_each_journalled_step,
    etcd_loss::a_lost_member_of_three_is_added_anew_and_begins_no_second_cluster,
    addons::kinds_jobs_and_needs_are_waited_for_on_two_control_planes,
    balancer::control_planes_use_it_and_a_worker_joins_without_an_endpoint,
    expired::a_worker_whose_certificate_has_ended_joins_again,
    dual_stack::flannel_carries_both_ip_versions_between_networks,
    objects::what_the_object_has_no_more_goes_and_another_node_goes_on,
    containerd::release_2_serves_pods_and_has_them_again_after_a_power_cut,
    slow_start::an_api_server_ahead_of_the_kubelet_has_the_time_of_its_startup_probe,
    provider::its_files_bring_nodes_up_without_kubeadm,
    metrics_server::says_what_nodes_and_pods_use_until_the_object_has_it_no_more,
    cloud::amazons_controller_knows_each_nodes_machine,
    update::another_image_and_the_earlier_one_again_have_their_own_container_images,
    credentials::a_provider_gives_the_registrys_password_and_no_log_has_it,
];

fn main() -> ExitCode {
    let recipe = |name: &str| match name.split_once("::") {
        Some(("containerd", _)) => containerd::RECIPE,
        Some(("provider", _)) => provider::RECIPE,
        Some(("metrics_server", _)) => metrics_server::RECIPE,
        Some(("cloud", _)) => cloud::RECIPE,
        Some(("credentials", _)) => credentials::RECIPE,
        _ => RECIPE,
    };
    runner::main(recipe, TESTS, LONG)
}
