package firstboot

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/state/durable"
)

// Three minutes after its start a device without a network says so on the card, once; when it has one, nothing is left.
func TestNetworkNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTree(t, map[string]string{bootDir + "/slot.cfg": "the loader's"})
		var opened atomic.Int32
		var readOnly atomic.Bool
		dev := tr.device()
		dev.Open = func() (func(), error) {
			opened.Add(1)
			if readOnly.Load() {
				return nil, errors.New("it is read-only")
			}
			return func() {}, nil
		}
		var problems health.Tracker
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go KeepNetworkNote(ctx, dev, &problems, slog.New(slog.DiscardHandler))
		after := func(d time.Duration, want string, writes int32) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := tr.text(bootDir + "/" + NetworkName); (got == "") != (want == "") || !strings.Contains(got, want) || opened.Load() != writes {
				t.Errorf("%q after %d writes, want %q after %d", got, opened.Load(), want, writes)
			}
		}
		problems.Set(health.LAN, `no other device can be reached: wlan0 does not see "lab"`, "compare the names")
		after(30*time.Second, "", 0)
		after(3*time.Minute, "\r\n\r\nno other device can be reached: wlan0 does not see \"lab\".\r\n\r\nWhat to do: compare the names.\r\n", 1)
		after(time.Hour, "lab", 1)
		problems.Set(health.LAN, "eth0 has no cable", "plug it in")
		after(networkEvery, "eth0", 2)
		problems.Clear(health.LAN)
		readOnly.Store(true)
		after(networkEvery, "eth0", 3)
		readOnly.Store(false)
		after(networkEvery, "", 4)
		after(time.Hour, "", 4)
	})
}

func TestANetworkNoteIsForgotten(t *testing.T) {
	tr := owned(t)
	fill(t, tr, map[string]string{bootDir + "/Network.txt": "does not see \"cafe\""})
	if _, err := Forget(tr.device()); err != nil {
		t.Fatal(err)
	}
	if tr.text(bootDir+"/Network.txt") != "" {
		t.Error("the next owner reads of the networks of this one")
	}
}

// The whole of iwd's settings is written, with the country and after each upgrade; what somebody has changed stays.
func TestSettingsOfTheRadio(t *testing.T) {
	files := full()
	files[radioBase] = "[DriverQuirks]\nSaeDisable=brcmfmac\n"
	files[radioPath] = "# Debian's\n"
	tr := newTree(t, files)
	is := func(when, want string) {
		t.Helper()
		tr.run()
		if got := tr.text(radioPath); !strings.HasPrefix(got, "# Written by") || got[strings.Index(got, "\n")+1:] != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	is("at first", "[General]\nCountry=DE\n[DriverQuirks]\nSaeDisable=brcmfmac\n")
	fill(t, tr, map[string]string{radioBase: "[DriverQuirks]\nPowerSaveDisable=*\n"})
	is("after an upgrade", "[General]\nCountry=DE\n[DriverQuirks]\nPowerSaveDisable=*\n")
	fill(t, tr, map[string]string{bootDir + "/rivulet.yaml": "name: bench-7\n"})
	is("without a country", "[DriverQuirks]\nPowerSaveDisable=*\n")
	fill(t, tr, map[string]string{radioPath: "# mine\n", bootDir + "/rivulet.yaml": "wifi: {country: \"FR\"}\n"})
	tr.run()
	if got := tr.text(radioPath); got != "# mine\n" {
		t.Errorf("an owner's own is %q", got)
	}
	if err := durable.Remove(tr.root + radioPath); err != nil {
		t.Fatal(err)
	}
	is("removed", "[General]\nCountry=FR\n[DriverQuirks]\nPowerSaveDisable=*\n")
	fill(t, tr, map[string]string{radioPath: "[General]\nCountry=FR\n", NotePath: strings.Replace(tr.text(NotePath), `"radio"`, `"was"`, 1)})
	is("of an earlier version", "[General]\nCountry=FR\n[DriverQuirks]\nPowerSaveDisable=*\n")
}
