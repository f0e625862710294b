package image

import (
	"strings"
	"testing"
	"time"
)

// demoImage is what the pods of these tests run; it comes on a second disk, as there is
// no registry: rivulet ctr images import.
const demoImage = "rivulet.dev/demo-web:1"

func demoDisk(t *testing.T) []string {
	t.Helper()
	path := image(t, "RIVULET_DEMO")
	return []string{"-drive", "file=" + path + ",format=raw,if=virtio,readonly=on"}
}

// Two cards of one image, two machines, a cable: they meet, each is a node of the other,
// a pod of one runs on the other, and does so again after that one's power was cut.
func TestTwoMachinesPeer(t *testing.T) {
	packed, demo := image(t, "RIVULET_IMAGE"), demoDisk(t)
	l := newLAN(t)
	small := append([]string{"-m", "2048"}, demo...)
	plugA, plugB := append(l.plug("tap0", 1), small...), append(l.plug("tap1", 2), small...)
	diskA, diskB := disk(t, packed, "4G"), disk(t, packed, "4G")
	a, b := l.on(diskA, plugA...), l.on(diskB, plugB...)
	a.up()
	nameA := a.ask("hostname")
	l.page(a, nameA)
	b.up()
	nameB := b.ask("hostname")
	if nameA == nameB || !strings.HasPrefix(nameA, "rivulet-") || !strings.HasPrefix(nameB, "rivulet-") {
		t.Fatalf("two devices of one image: %q and %q", nameA, nameB)
	}
	if idA, idB := a.ask("cat /etc/machine-id"), b.ask("cat /etc/machine-id"); idA == idB {
		t.Errorf("both have machine-id %s", idA)
	}

	begun := time.Now()
	nodeReady := func(on *machine, node string) {
		t.Helper()
		on.until("rivulet kubectl get node "+node+" --no-headers", `^`+node+`\s+Ready\s`)
	}
	nodeReady(a, nameB)
	nodeReady(b, nameA)
	t.Logf("each is a Ready node of the other %.0f s after both supervisors ran", time.Since(begun).Seconds())
	// The neighbour sees the page, too, with what it has: no curl there.
	address := a.until("ip -o -4 addr show dev eth0 scope link | awk '{print $4}' | cut -d/ -f1", `^169\.254\.`)
	if got := b.ask(`exec 3<>/dev/tcp/` + address + `/80; printf 'GET / HTTP/1.0\r\nHost: ` + nameA + `.local\r\n\r\n' >&3; grep -c '<h1>` + nameA + `</h1>' <&3; exec 3>&-`); got != "1" {
		t.Errorf("the page of %s, asked for by its neighbour: %s", nameA, got)
	}
	t.Logf("the page once they have met:\n%s", plain(l.page(a, nameA)))
	t.Logf("the screen:\n%s", a.screen())

	for _, m := range []*machine{a, b} {
		m.until("rivulet ctr images import --label rivulet.dev/share=true /dev/vdb >/dev/null; rivulet crictl images", "demo-web")
	}
	for _, do := range []string{
		"{ rivulet kubectl get namespace lab || rivulet kubectl create namespace lab; }",
		"rivulet offload lab --create --when remote",
		"{ rivulet kubectl -n lab get deployment web || rivulet kubectl -n lab create deployment web --image=" + demoImage + "; }",
	} {
		a.until(do+" && echo 'do''ne'", "^done$")
	}
	begun = time.Now()
	runs := func() string {
		t.Helper()
		return a.until("rivulet kubectl -n lab get pods -o wide --no-headers", `^web-\S+\s+1/1\s+Running\s.*\s`+nameB+`\s`)
	}
	t.Logf("after %.0f s:\n%s", time.Since(begun).Seconds(), runs())
	// It really runs there, and home's kubectl reaches into it.
	b.until("rivulet crictl ps --state running", `demo-web`)
	if got := a.ask("rivulet crictl ps --all | grep -c demo-web"); got != "0" {
		t.Errorf("at home there are %s containers of the pod", got)
	}
	a.until("rivulet kubectl -n lab exec deploy/web -- id -u", "^1000$")
	boot := b.ask("cat /proc/sys/kernel/random/boot_id")

	begun = time.Now()
	b.cut()
	a.until("rivulet kubectl get node "+nameB+" --no-headers", `^`+nameB+`\s+NotReady`)
	t.Logf("home knows after %.0f s that the machine is gone", time.Since(begun).Seconds())
	begun = time.Now()
	b = l.on(diskB, plugB...)
	b.up()
	if again := b.ask("cat /proc/sys/kernel/random/boot_id; hostname"); strings.HasPrefix(again, boot) || !strings.HasSuffix(again, nameB) {
		t.Errorf("after the power cut: %q; before: %s, %s", again, boot, nameB)
	}
	nodeReady(a, nameB)
	nodeReady(b, nameA)
	b.until("rivulet crictl ps --state running", `demo-web`)
	pods := runs()
	a.until("rivulet kubectl -n lab exec deploy/web -- id -u", "^1000$")
	t.Logf("%.0f s after it was switched on again:\n%s", time.Since(begun).Seconds(), pods)
	if n := strings.Count(pods, "\n"); n != 0 {
		t.Errorf("one pod is asked for, there are:\n%s", pods)
	}
}
