package mishaps

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"rivulet/fabric/peer"
)

const config = "/etc/rivulet/config.yaml"

func configured(d, text string) step {
	return shell(d, "mkdir -p /etc/rivulet && printf '"+text+"' > "+config+" && chmod 644 "+config+" && rivulet config reload")
}

func unconfigured(d string) step { return shell(d, "rm -f "+config+" && rivulet config reload") }

// connected is nil once b is, as a sees it.
func connected(_ *testing.T, ctx context.Context, _ string) error {
	st, err := a.Status(ctx)
	for _, p := range st.Peers {
		if p.Name == "b" && p.State == string(peer.Connected) {
			return nil
		}
	}
	return errors.Join(errors.New("b is not connected"), err)
}

// gone is nil once a screen does not show the words any more.
func gone(screen, words string) func(t *testing.T, ctx context.Context, ns string) error {
	return func(t *testing.T, ctx context.Context, _ string) error {
		if out := look(t, ctx, screen, ""); strings.Contains(out, words) {
			return fmt.Errorf("%s shows %s:\n%s", screen, words, out)
		}
		return nil
	}
}

func heal(t *testing.T, ctx context.Context, _ string) {
	if err := suite.Lab.Heal(); err != nil {
		t.Error(err)
	}
	for _, d := range suite.All() {
		if err := d.WaitPeered(ctx, 1); err != nil {
			t.Error(err)
		}
	}
}

func start(d string) step {
	return func(t *testing.T, ctx context.Context, _ string) {
		if err := suite.Devices[d].Start(ctx); err != nil {
			t.Fatal(err)
		}
		if err := suite.Devices[d].WaitPeered(ctx, 1); err != nil {
			t.Fatal(err)
		}
	}
}

func stop(d string) step {
	return func(t *testing.T, ctx context.Context, _ string) {
		if err := suite.Devices[d].Stop(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

var ofDevices = []mishap{
	{
		name:  "a key that is mistyped",
		harm:  shell("a", "mkdir -p /etc/rivulet && printf 'trust:\\n  mod: ask\\n' > "+config+" && ! rivulet config reload"),
		from:  "status",
		shows: map[string]string{"status": "config-broken…did you mean mode?", "doctor": "config-broken"},
		hands: map[string]step{"did you mean mode": shell("a", "sed -i 's/mod:/mode:/; s/ask/lan/' "+config+" && rivulet config reload")},
		over:  gone("status", "config-broken"),
		after: unconfigured("a"),
	}, {
		name:   "a configuration that everybody may write",
		before: configured("a", `trust:\n  mode: lan\n`),
		harm:   shell("a", "chmod 666 "+config+" && rivulet config reload"),
		from:   "status",
		shows:  map[string]string{"status": "config-unsafe", "doctor": "config-unsafe"},
		over:   gone("status", "config-unsafe"),
		after:  unconfigured("a"),
	}, {
		name:  "an interface that is not there",
		harm:  configured("a", `lan:\n  interfaces: [eth9]\n`),
		from:  "status",
		shows: map[string]string{"status": "lan-unmatched…eth9", "doctor": "lan-unmatched"},
		hands: map[string]step{"remove lan.interfaces": unconfigured("a")},
		over:  gone("status", "lan-unmatched"),
		after: unconfigured("a"),
	}, {
		name:  "a peer that was unpeered",
		harm:  shell("a", "rivulet unpeer b --yes"),
		why:   "peer/b",
		shows: map[string]string{"status": "b…Denied", "why": "b"},
		over:  connected,
		after: heal,
	}, {
		name:  "a peer whose owner has ended it",
		harm:  shell("b", "rivulet unpeer a --yes"),
		why:   "peer/b",
		shows: map[string]string{"status": "b…Refused", "why": "b"},
		hands: map[string]step{"rivulet peer a": on("b", "rivulet", "peer", "a")},
		over:  connected,
		after: both(on("b", "rivulet", "peer", "a"), heal),
	}, {
		name:  "a peer that waits for a person",
		harm:  both(configured("a", `trust:\n  mode: ask\n`), on("a", "rivulet", "unpeer", "b", "--forget", "--yes")),
		why:   "peer/b",
		shows: map[string]string{"status": "peer-waiting", "why": "it wants to be a peer, and waits for approval here"},
		over:  connected,
		after: both(unconfigured("a"), heal),
	}, {
		name:  "a peer that is off",
		harm:  stop("b"),
		why:   "peer/b",
		shows: map[string]string{"status": "b…Lost", "why": "b"},
		hands: map[string]step{"is rivulet running": start("b")},
		over:  connected,
		after: heal,
	}, {
		name:    "a cable that is out",
		before:  offloaded(),
		objects: deployment("web", "", onPeer, sleeps),
		harm: both(running, func(t *testing.T, _ context.Context, _ string) {
			if err := suite.Lab.Cut("a", "b"); err != nil {
				t.Fatal(err)
			}
		}),
		why:   "deploy/web",
		shows: map[string]string{"status": "peer-cut-off", "pods": "away…web", "why": "peer b is not reached", "doctor": "peer-cut-off"},
		hands: map[string]step{"rivulet doctor peer b": heal},
		after: heal,
	}, {
		name:    "a peer that lends nothing",
		before:  both(offloaded(), configured("b", `share:\n  maxPods: 0\n`), comes("lends nothing", "rivulet", "peers")),
		objects: deployment("web", "", onPeer, sleeps),
		why:     "deploy/web",
		shows:   map[string]string{"status": "b…lends nothing to this cluster", "pods": "waiting…NAMESPACE", "why": "b lends nothing now"},
		hands:   map[string]step{"take share out of the configuration of b": unconfigured("b")},
		after:   both(unconfigured("b"), heal),
	}, {
		name:   "a firewall that shuts pods out",
		before: shell("a", "rivulet kubectl run bridged --image=rivulet.dev/pause:none --image-pull-policy=Never"), // its sandbox makes the bridge
		harm: shell("a", "iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; "+
			"iptables -A INPUT -i eth0 -j ACCEPT; iptables -P INPUT DROP"),
		from:  "doctor",
		shows: map[string]string{"status": "pod-network", "doctor": "drops what pods send"},
		over:  gone("status", "pod-network"),
		after: shell("a", "iptables -P INPUT ACCEPT; iptables -D INPUT -i eth0 -j ACCEPT; iptables -D INPUT -i lo -j ACCEPT; iptables -D INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; "+
			"iptables -D INPUT -i cni0 -j ACCEPT; iptables -D INPUT -i riv0 -j ACCEPT; rivulet kubectl delete --now pod/bridged"),
	}, {
		name:  "a manifest that cannot be applied",
		harm:  shell("a", "printf 'apiVersion: helm.cattle.io/v1\\nkind: HelmChart\\nmetadata: {name: x, namespace: kube-system}\\n' > /var/lib/rivulet/k3s/server/manifests/mine.yaml"),
		from:  "status",
		shows: map[string]string{"status": "carried-over…mine", "doctor": "carried-over"},
		hands: map[string]step{"move it out of its folder": shell("a", "mv /var/lib/rivulet/k3s/server/manifests/mine.yaml /root/")},
		over:  gone("doctor", "mine"),
		after: shell("a", "rm -f /var/lib/rivulet/k3s/server/manifests/mine.yaml"),
	}, {
		name:  "nobody started it",
		harm:  stop("a"),
		why:   "peer/b",
		shows: map[string]string{"status": "rivulet is not running", "pods": "rivulet is not running", "why": "rivulet is not running", "doctor": "not running"},
		from:  "status",
		hands: map[string]step{"start it with": start("a")},
		over:  connected,
	},
}

func TestMishapsOfDevices(t *testing.T) {
	for _, m := range ofDevices {
		t.Run(m.name, func(t *testing.T) { play(t, m) })
	}
}
