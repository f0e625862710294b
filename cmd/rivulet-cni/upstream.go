//go:build cni_upstream

package main

import (
	"rivulet/_build/cni/bandwidth"
	"rivulet/_build/cni/bridge"
	"rivulet/_build/cni/hostlocal"
	"rivulet/_build/cni/loopback"
	"rivulet/_build/cni/portmap"
)

func init() {
	plugins["bandwidth"] = bandwidth.Main
	plugins["bridge"] = bridge.Main
	plugins["host-local"] = hostlocal.Main
	plugins["loopback"] = loopback.Main
	plugins["portmap"] = portmap.Main
}
