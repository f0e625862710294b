package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/machine/host"
)

func newConfig(c *common) *cobra.Command {
	return group(&cobra.Command{
		Use:                        "config",
		Short:                      "check, show, explain and reload the configuration",
		SuggestionsMinimumDistance: 2,
	}, newConfigCheck(c), newConfigShow(c), newConfigReload(c), newConfigExample(), newConfigExplain())
}

func newConfigCheck(c *common) *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "all mistakes of a configuration file, with line and column; changes nothing",
		Long:  "Exit code 0: no mistake; 1: one or more, or the file cannot be read.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("config check takes one file, yet was given %q as well; see: %s --help", args[1], cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			src, err := s.source(cmd.Flags())
			if err != nil {
				return err
			}
			if len(args) == 1 {
				src.Path, src.Named = args[0], true
			}
			src.Host = thisHost()
			return printCheck(cmd.OutOrStdout(), c, src.Load(time.Now()))
		},
	}
	s.pathFlag(cmd.Flags())
	return withOutput(c, cmd)
}

func thisHost() config.Host {
	h := config.Host{CPUs: runtime.NumCPU()}
	if facts, err := host.Probe(); err == nil {
		h.MemoryBytes = facts.MemoryBytes
	}
	return h
}

func printCheck(out io.Writer, c *common, l config.Loaded) error {
	if c.forProgram() {
		err := c.print(out, struct {
			File     string          `json:"file"`
			Valid    bool            `json:"valid"`
			Problems config.Problems `json:"problems"`
			Warnings config.Problems `json:"warnings"`
		}{l.File, len(l.Problems) == 0, append(config.Problems{}, l.Problems...), append(config.Problems{}, l.Warnings...)})
		if err == nil && len(l.Problems) > 0 {
			err = &exitError{code: exitFailed}
		}
		return err
	}
	for _, p := range l.Problems {
		fmt.Fprintln(out, p)
	}
	for _, w := range l.Warnings {
		fmt.Fprintln(out, "warning:", w)
	}
	switch n := len(l.Problems); {
	case n == 1:
		return &exitError{exitFailed, fmt.Errorf("%s has a mistake; mend it, then check again", l.File)}
	case n > 1:
		return &exitError{exitFailed, fmt.Errorf("%s has %d mistakes; mend them, then check again", l.File, n)}
	case l.From == config.FromDefaults:
		fmt.Fprintf(out, "there is no %s: the defaults are in force\n", l.File)
	default:
		fmt.Fprintf(out, "%s has no mistake\n", l.File)
	}
	return nil
}

func newConfigShow(c *common) *cobra.Command {
	var s settings
	var origin bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "the settings in force, with defaults and without secrets",
		Long:  "Shows the settings of the running rivulet; if none runs, those that a start from this shell would use.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, err := s.source(cmd.Flags())
			if err == nil {
				err = s.check(source)
			}
			if err != nil {
				return err
			}
			var v config.View
			err = api.Call(cmd.Context(), c.dirs.Run, "GET", "/v1/config", nil, &v)
			if errors.Is(err, api.ErrNotRunning) {
				v, err = dryView(cmd, source), nil
			}
			if err != nil {
				return err
			}
			return result(cmd, c, v, func(out io.Writer, v config.View) error { return printView(out, v, origin) })
		},
	}
	s.flags(cmd.Flags())
	cmd.Flags().BoolVar(&origin, "origin", false, "the origin of each value")
	return withOutput(c, cmd)
}

// dryView is what a start would use.
func dryView(cmd *cobra.Command, src config.Source) config.View {
	src.Host = thisHost()
	name, err := os.Hostname()
	if err != nil {
		name = "unknown"
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "rivulet is not running here; this is what a start would use")
	return src.Load(time.Now()).View(host.Name(name))
}

func printView(out io.Writer, v config.View, origins bool) error {
	fmt.Fprintf(out, "# %s\n", configLine(api.Config{File: v.File, From: v.From, Loaded: v.At, Broken: len(v.Problems) > 0, Pending: v.Pending}))
	for _, p := range v.Problems {
		fmt.Fprintf(out, "# mistake: %s\n", p)
	}
	for _, w := range v.Warnings {
		fmt.Fprintf(out, "# warning: %s\n", w)
	}
	_, err := fmt.Fprint(out, v.YAML(origins))
	return err
}

// configLine describes which configuration is in force.
func configLine(c api.Config) string {
	var line string
	at := c.Loaded.Local().Format(time.DateTime)
	switch {
	case c.From == config.FromFile:
		line = fmt.Sprintf("CONFIG  %s, loaded %s", c.File, at)
	case c.From == config.FromLastGood:
		line = fmt.Sprintf("CONFIG  the last good one, loaded %s, because %s has a mistake", at, c.File)
	case c.Broken:
		line = fmt.Sprintf("CONFIG  defaults, because %s has a mistake", c.File)
	default:
		line = fmt.Sprintf("CONFIG  defaults; there is no %s", c.File)
	}
	if len(c.Pending) > 0 {
		line += "; pending: " + strings.Join(c.Pending, ", ")
	}
	return line
}

func newConfigReload(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "make the running rivulet read its configuration file now",
		Long: "Changes of the file are also detected automatically; this shows the result, and also reads files that\n" +
			"the configuration names. Exit code 0: the file is in force; 1: it has a mistake, and the former settings stay in force.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r api.Reloaded
			if err := api.Call(cmd.Context(), c.dirs.Run, "POST", "/v1/config/reload", nil, &r); err != nil {
				return err
			}
			return printReloaded(cmd.OutOrStdout(), c, r)
		},
	}
	return withOutput(c, cmd)
}

func printReloaded(out io.Writer, c *common, r api.Reloaded) error {
	if c.forProgram() {
		if err := c.print(out, r); err != nil || len(r.Problems) == 0 {
			return err
		}
		return &exitError{code: exitFailed}
	}
	for _, p := range r.Problems {
		fmt.Fprintln(out, p)
	}
	if len(r.Problems) > 0 {
		return &exitError{exitFailed, fmt.Errorf("%s is not used, what was in force stays; mend it, and it is taken by itself", r.File)}
	}
	changed := "nothing has changed"
	if len(r.Changed) > 0 {
		changed = "changed: " + strings.Join(r.Changed, ", ")
	}
	fmt.Fprintf(out, "%s\n%s\n", configLine(r.Config), changed)
	return nil
}

func newConfigExample() *cobra.Command {
	return &cobra.Command{
		Use:   "example",
		Short: "a configuration file with every key, commented out",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return printf(cmd, "%s", config.Example) },
	}
}

func newConfigExplain() *cobra.Command {
	return &cobra.Command{
		Use:       "explain KEY",
		Short:     "what a key sets, or the keys of a group: values, default, what a change does",
		ValidArgs: config.Keys,
		Args:      takes(1, "config explain takes one key, for example: rivulet config explain share.cpu; see: %[2]s --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := config.Explain(args[0])
			if err != nil {
				return &usageError{err}
			}
			for _, k := range keys {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n  value     %s\n  default   %s\n  change    %s\n  variable  %s\n",
					k.Name, k.What, k.Type(), dash(k.Default), k.Change, config.Variable(k.Name))
				if k.See != "" {
					fmt.Fprintf(cmd.OutOrStdout(), "  more      rivulet docs design/%s\n", k.See)
				}
			}
			return nil
		},
	}
}
