// Package systemd carries the unit with which a device runs Rivulet. It reads
// and writes nothing; whoever installs it copies it to /etc/systemd/system.
package systemd

import _ "embed"

// Unit is rivulet.service.
//
//go:embed rivulet.service
var Unit string
