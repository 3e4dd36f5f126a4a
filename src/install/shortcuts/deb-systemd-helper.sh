#!/bin/sh
# In the place of deb-systemd-helper while packages are configured: answers what needs no Perl. Everything else is the helper's own.
instance=system
folder=/var/lib/systemd/deb-systemd-helper
quiet= action= unit= more=
for word in "$@"; do
    case $word in
        --quiet) quiet=1 ;;
        --system) ;;
        --user)
            instance=user
            folder=/var/lib/systemd/deb-systemd-user-helper
            ;;
        -* | */*) more=1 ;;
        *)
            if [ -z "$action" ]; then
                action=$word
            elif [ -z "$unit" ]; then
                unit=$word
            else
                more=1
            fi
            ;;
    esac
done
if [ -n "$unit" ] && [ -z "$more$DPKG_ROOT$_DEB_SYSTEMD_HELPER_DEBUG$_DEB_SYSTEMD_HELPER_PURGE" ] &&
    [ -n "$DPKG_MAINTSCRIPT_PACKAGE" ]; then
    case $action in
        unmask)
            # It is not masked, and there are no folders that the helper would remove.
            if [ ! -e "/etc/systemd/$instance/$unit" ] && [ ! -e /var/lib/systemd/deb-systemd-helper-masked ] &&
                [ ! -e /var/lib/systemd/deb-systemd-user-helper-masked ]; then
                exit 0
            fi
            ;;
        was-enabled)
            # It is new, so no link of it is missing.
            if [ ! -e "$folder-enabled/$unit.dsh-also" ]; then
                [ -n "$quiet" ] || echo enabled >&2
                exit 0
            fi
            ;;
        debian-installed)
            [ -f "$folder-enabled/$unit.dsh-also" ]
            exit
            ;;
    esac
fi
exec /usr/bin/.deb-systemd-helper.slipway "$@"
