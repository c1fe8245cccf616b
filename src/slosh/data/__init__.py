"""Sets and what happens to them before they are embedded: conversion, checks of user input, batching, preprocessing."""
