package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A service is an executable file in the node's folder services. In /run/services, NAME.pid says that it runs, and
// NAME.down that it shall not.
const (
	runDir      = "/run/services"
	restartTime = time.Second
	pollTime    = 50 * time.Millisecond
	stopTime    = 30 * time.Second
)

// supervise keeps the services of folder running and reaps what died, for ever.
func supervise(folder string) {
	files, err := os.ReadDir(folder)
	if err == nil {
		err = os.Mkdir(runDir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
	var mu sync.Mutex // held while a process is started, so that its end cannot be seen before it is known
	ended := map[int]chan struct{}{}
	start := func(name string) (chan struct{}, error) {
		mu.Lock()
		defer mu.Unlock()
		pid, err := spawn(folder, name)
		if err != nil {
			return nil, err
		}
		ended[pid] = make(chan struct{})
		return ended[pid], os.WriteFile(pidFile(name), []byte(strconv.Itoa(pid)), 0o644)
	}
	for _, f := range files {
		name := f.Name()
		go func() {
			for ; ; time.Sleep(pollTime) {
				if exists(downFile(name)) {
					continue
				}
				done, err := start(name)
				if err != nil {
					fmt.Fprintf(os.Stderr, "node: start %s: %v\n", name, err)
				} else {
					<-done
				}
				_ = os.Remove(pidFile(name)) // it may not have been written
				time.Sleep(restartTime)
			}
		}()
	}
	for {
		pid, err := syscall.Wait4(-1, nil, 0, nil)
		if err != nil { // ECHILD: there is none
			time.Sleep(pollTime)
			continue
		}
		mu.Lock()
		if done := ended[pid]; done != nil {
			close(done)
			delete(ended, pid)
		}
		mu.Unlock()
	}
}

func spawn(folder, name string) (int, error) {
	log, err := os.OpenFile(filepath.Join("/var/log", name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	file := filepath.Join(folder, name)
	return syscall.ForkExec(file, []string{file}, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{0, log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

func pidFile(name string) string  { return filepath.Join(runDir, name+".pid") }
func downFile(name string) string { return filepath.Join(runDir, name+".down") }

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// systemctl does what kubeadm and the documentation ask systemd for, and gives the exit code.
func systemctl(args []string) int {
	if len(args) == 0 || args[0] == "daemon-reload" {
		return 0
	}
	for _, name := range args[1:] {
		name = strings.TrimSuffix(name, ".service")
		var err error
		switch args[0] {
		case "is-enabled", "enable":
		case "is-active", "status":
			if pidOf(name) == 0 {
				fmt.Println("inactive")
				return 3
			}
			fmt.Println("active")
		case "start":
			err = start(name)
		case "stop":
			err = stop(name)
		case "restart":
			err = errors.Join(stop(name), start(name))
		default:
			err = errors.New("unknown command")
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "systemctl %s %s: %v\n", args[0], name, err)
			return 1
		}
	}
	return 0
}

// pidOf gives the process of a service, 0 if it does not run.
func pidOf(name string) int {
	data, err := os.ReadFile(pidFile(name))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(string(data))
	if err != nil {
		return 0
	}
	return pid
}

func start(name string) error {
	if err := os.Remove(downFile(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return wait(func() bool { return pidOf(name) != 0 })
}

func stop(name string) error {
	if err := os.WriteFile(downFile(name), nil, 0o644); err != nil {
		return err
	}
	pid := pidOf(name)
	if pid == 0 {
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return wait(func() bool { return pidOf(name) != pid })
}

func wait(until func() bool) error {
	for end := time.Now().Add(stopTime); !until(); time.Sleep(pollTime) {
		if time.Now().After(end) {
			return errors.New("nothing came of it in time")
		}
	}
	return nil
}
