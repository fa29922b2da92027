# After a reboot the instance is there without hand-work; then the package is purged, and nothing is left.
until_new 0
crosses
systemctl show -p NRestarts quillon@rack
measure rebooted sleep 1
apt-get purge -y quillon
if crosses; then exit 1; fi
interfaces >/run/interfaces
diff -u /var/lib/interfaces /run/interfaces
# What the administrator wrote stays.
test "$(find / -xdev -name '*quillon*' ! -path '/trial/*'; find /run -name '*quillon*')" = /etc/quillon
test "$(ls /etc/quillon)" = rack.yaml
test "$(systemctl list-units --all --no-legend 'quillon*')" = ""
test -z "$(find /etc/systemd /run/systemd -name 'quillon*')"
