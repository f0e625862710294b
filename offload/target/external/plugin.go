package external

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// A kubeconfig's plug-in is a command by whoever wrote the kubeconfig. client-go would run it as this process's user,
// with its environment. It is run by this program in between, see RunPlugin.

const (
	// pluginEnv has the environment of the kubeconfig, as JSON: none of it is for the program in between.
	pluginEnv = "BURST_PLUGIN_ENVIRONMENT"
	// execInfo is of client-go's protocol of plug-ins.
	execInfo   = "KUBERNETES_EXEC_INFO"
	pluginPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// nobody is the user and the group of plug-ins, where this program may choose.
	nobody = 65534
	// pluginTime bounds a run, maxCredential its output in bytes.
	pluginTime, maxCredential = time.Minute, 1 << 20
)

// PluginVerb are the arguments of this program for RunPlugin; the command and its arguments follow.
var PluginVerb = []string{"burst", "plugin"}

// confine changes a plug-in so that it is run by RunPlugin.
func confine(e *clientcmdapi.ExecConfig) error {
	own, err := json.Marshal(e.Env)
	if err != nil {
		return err
	}
	e.Args = append(append(append([]string{}, PluginVerb...), e.Command), e.Args...)
	e.Command = "/proc/self/exe"
	e.Env = []clientcmdapi.ExecEnvVar{{Name: pluginEnv, Value: string(own)}}
	return nil
}

// RunPlugin runs a plug-in and returns its output: as nobody if this process is root's, with a PATH, a HOME that is a
// folder of this run, and the environment of the kubeconfig. After a minute it is killed.
func RunPlugin(ctx context.Context, args []string) ([]byte, error) {
	if len(args) == 0 {
		return nil, errors.New("which plug-in? This is run by Rivulet itself; see: rivulet burst add --help")
	}
	var own []clientcmdapi.ExecEnvVar
	if err := json.Unmarshal([]byte(os.Getenv(pluginEnv)), &own); err != nil {
		return nil, fmt.Errorf("%s: %w; this is run by Rivulet itself, see: rivulet burst add --help", pluginEnv, err)
	}
	if err := Trusted(args[0]); err != nil {
		return nil, err
	}
	home, err := os.MkdirTemp("/tmp", "rivulet-plugin-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(home)
	ctx, cancel := context.WithTimeout(ctx, pluginTime)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = home, &capped{&out}, os.Stderr, time.Second
	cmd.Env = []string{"PATH=" + pluginPath, "HOME=" + home, execInfo + "=" + os.Getenv(execInfo)}
	for _, v := range own {
		cmd.Env = append(cmd.Env, v.Name+"="+v.Value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		if err := os.Chown(home, nobody, nobody); err != nil {
			return nil, err
		}
	}
	runtime.LockOSThread() // the child inherits this from the thread, and ends with it; the thread is of no other use
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("no new privileges: %w", err)
	}
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it has left behind
	}
	switch {
	case errors.Is(err, exec.ErrWaitDelay): // only what it left behind had not ended
		err = nil
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%s cannot be run by the user nobody: %w; install it for all: sudo install -m 755 '%s' /usr/local/bin/", args[0], err, args[0])
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s did not end within %s; run it by hand: %s", args[0], pluginTime, strings.Join(args, " "))
	}
	return out.Bytes(), err
}

// capped refuses more than maxCredential. The buffer is not embedded: its ReadFrom would go past Write.
type capped struct{ to *bytes.Buffer }

func (c *capped) Write(p []byte) (int, error) {
	if c.to.Len()+len(p) > maxCredential {
		return 0, errors.New("the plug-in writes more than a credential")
	}
	return c.to.Write(p)
}
