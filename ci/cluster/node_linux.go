package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// supported says what is missing.
func supported() error {
	if os.Getuid() != 0 {
		return errors.New("a cluster of namespaces can only be made by root")
	}
	if hierarchies, err := filepath.Glob("/sys/fs/cgroup/memory/cgroup.procs"); err != nil || len(hierarchies) == 0 {
		return errors.New("a cluster of namespaces needs cgroup v1 at /sys/fs/cgroup: use a cluster of another kind (see CONTRIBUTING.md)")
	}
	var missing []string
	for program, pkg := range map[string]string{
		"containerd": "containerd", "runc": "runc", "/usr/lib/cni/bridge": "containernetworking-plugins", "conntrack": "conntrack",
		"iptables": "iptables", "ip": "iproute2", "nsenter": "util-linux", "ethtool": "ethtool", "socat": "socat",
	} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("a cluster of namespaces needs what is not installed here: apt-get install %s", strings.Join(missing, " "))
	}
	return nil
}

// inNamespaces makes a command process 1 of namespaces of its own, which outlives us.
func inNamespaces(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS,
		Setsid:     true,
	}
}

func killGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// opaque makes a folder of an overlay, which hides what lies below it.
func opaque(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return unix.Setxattr(dir, "trusted.overlay.opaque", []byte("y"), 0)
}

// processOf gives process 1 of the node with that folder, 0 if it does not run. Nothing has to be remembered for it, which
// may be wrong after a crash or a reboot: it is the one that runs the cluster's own program with the folder for argument.
func processOf(dir string) int {
	program := filepath.Join(filepath.Dir(dir), "bin", "node")
	found, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range found {
		if file, err := os.Readlink(exe); err != nil || strings.TrimSuffix(file, " (deleted)") != program {
			continue
		}
		proc := filepath.Dir(exe)
		args, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		status, _ := os.ReadFile(filepath.Join(proc, "status"))
		_, inside, _ := strings.Cut(string(status), "\nNSpid:\t")
		inside, _, _ = strings.Cut(inside, "\n")
		if words := strings.Split(string(args), "\x00"); len(words) > 1 && words[1] == dir && strings.HasSuffix(inside, "\t1") {
			pid, _ := strconv.Atoi(filepath.Base(proc))
			return pid
		}
	}
	return 0
}

// Kill ends the node as a power cut would, and with it all that runs there. Its folder stays. It is no error if it does
// not run.
func (n *Node) Kill() error {
	n.cluster.mu.Lock()
	n.up = false
	n.cluster.mu.Unlock()
	pid := processOf(n.dir)
	if pid == 0 {
		return nil
	}
	// By a descriptor, so that the kernel tells when the last process is gone.
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("end %s: %w", n.Name, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end %s: %w", n.Name, err)
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		switch ready, err := unix.Poll(poll, 1000); {
		case ready == 1:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("end %s: %w", n.Name, err)
		}
	}
	return fmt.Errorf("end %s: process %d is still there a minute after SIGKILL", n.Name, pid)
}

const cgroupRoot = "/sys/fs/cgroup"

func makeCgroups(name string) error {
	controllers, err := filepath.Glob(cgroupRoot + "/*/cgroup.procs")
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if err := os.MkdirAll(filepath.Join(filepath.Dir(c), name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroups removes the cgroups of that name with all below them. The kernel lets go of the last process a moment after
// it ended.
func removeCgroups(name string) error {
	trees, err := filepath.Glob(cgroupRoot + "/*" + name)
	if err != nil {
		return err
	}
	end := time.Now().Add(time.Minute)
	for _, tree := range trees {
		for {
			err := removeTree(tree)
			if err == nil {
				break
			}
			if time.Now().After(end) {
				return err
			}
			time.Sleep(pollTime)
		}
	}
	return nil
}

// removeTree removes folders from the leaves on: the files in a cgroup cannot be removed.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

// Listen listens in the node's network, for its processes and its pods: so they reach a server of the test.
func (n *Node) Listen(address string) (l net.Listener, err error) {
	err = n.inNetwork(func() error {
		l, err = net.Listen("tcp", address)
		return err
	})
	return l, err
}

// Dial connects to an address (of digits) in the node's network.
func (n *Node) Dial(ctx context.Context, address string) (c net.Conn, err error) {
	err = n.inNetwork(func() error {
		var d net.Dialer
		c, err = d.DialContext(ctx, "tcp", address)
		return err
	})
	return c, err
}

// inNetwork runs do on a thread that is in the node's network meanwhile.
func (n *Node) inNetwork(do func() error) error {
	result := make(chan error)
	go func() {
		// The thread goes back to where it was. One that ended instead would take with it the servers that were started from
		// it and die with their parent, which is a thread.
		runtime.LockOSThread()
		result <- func() error {
			here, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			defer here.Close()
			there, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", n.pid))
			if err != nil {
				return err
			}
			defer there.Close()
			if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter the network of %s: %w", n.Name, err)
			}
			err = do()
			if back := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); back != nil {
				return errors.Join(err, fmt.Errorf("leave the network of %s: %w", n.Name, back)) // and the thread ends, locked
			}
			runtime.UnlockOSThread()
			return err
		}()
	}()
	return <-result
}
