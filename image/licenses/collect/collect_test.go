package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// NOTICE names what go.mod and debs.list have now, and all of it has a text.
func TestNoticeIsUpToDate(t *testing.T) {
	t.Chdir("../../..")
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	tags := regexp.MustCompile(`(?m)^TAGS\s*:= (.*)$`).FindSubmatch(makefile)
	if tags == nil {
		t.Fatal("the Makefile has no TAGS")
	}
	parts, err := modules(string(tags[1]))
	if err != nil {
		t.Fatal(err)
	}
	debs, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, table(parts, debs)) {
		t.Error("NOTICE is not what the module graphs say; write it anew with: make notice")
	}
	for _, want := range []string{"k3s-io/kubernetes ", "coredns/coredns ", "opencontainers/runc ", "containernetworking/plugins ", "iptables 1", "golang.zx2c4.com/wireguard "} {
		if !strings.Contains(string(have), want) {
			t.Errorf("NOTICE lacks %s", want)
		}
	}
	var out bytes.Buffer
	if err := appendTexts(&out, parts, ""); err != nil {
		t.Fatal(err)
	}
	for _, m := range parts {
		if !strings.Contains(out.String(), "\n"+m.id()+" (") {
			t.Errorf("%s has no text", m.id())
		}
	}
}

// A module without a licence that is known ends it, so that somebody reads it.
func TestUnknownLicenceIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/LICENSE", []byte("You may not use this."), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := describe("example.org/x", "v1", dir); err == nil || !strings.Contains(err.Error(), "example.org/x v1") {
		t.Errorf("%v, want an error with the module's name", err)
	}
	for text, want := range map[string]string{
		"Apache License\n   Version 2.0, January 2004":                                     "Apache-2.0",
		"Permission is hereby granted, free\nof charge, to any person obtaining a copy of": "MIT",
		"Redistribution and use in source and binary forms, with":                          "BSD-2-Clause",
		"Redistribution and use in source and binary forms ... Neither the name of the":    "BSD-3-Clause",
		"Mozilla Public License Version 2.0":                                               "MPL-2.0",
	} {
		if got := kinds(text); !slices.Equal(got, []string{want}) {
			t.Errorf("%q: %v, want %s", text, got, want)
		}
	}
}

// The runc of the bundle is listed from its own module.
func TestRuncIsOfItsOwnModule(t *testing.T) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "github.com/opencontainers/runc")
	cmd.Dir = "../../bundle/runc"
	version, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	notice, err := os.ReadFile("../../../NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	if want := "github.com/opencontainers/runc " + strings.TrimSpace(string(version)); !strings.Contains(string(notice), want) {
		t.Errorf("NOTICE lacks %q", want)
	}
}
