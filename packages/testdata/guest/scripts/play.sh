# Plays the script of this boot: the first ends in a reboot, the second in the end of the trial.
exec >/dev/ttyS1 2>&1 </dev/null
script=first end=reboot
if [ -e /var/lib/booted ]; then
	script=second end=poweroff
fi
: >/var/lib/booted
if sh -eux -c '. /trial/scripts/words.sh; . /trial/scripts/$0.sh' $script; then
	echo "$script boot went well"
else
	journalctl -b --no-pager -o short-monotonic | tail -n 150
	echo "$script boot failed"
	end=poweroff
fi
systemctl --no-block $end
sleep 600
